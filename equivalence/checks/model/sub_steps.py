"""The prompt's rows, sub-step by sub-step: each is fed what the pack recorded before it and judged by what came after.

Knows the order of the sub-steps; the modules beside it hold them.
"""

from __future__ import annotations

from equivalence.checks.model.attention_steps import AttentionSteps
from equivalence.checks.model.evidence import Evidence
from equivalence.checks.model.stream_steps import StreamSteps
from equivalence.checks.model.teacher import Teacher


def compare(teacher: Teacher, evidence: Evidence) -> None:
    """Every sub-step of every layer in the order of the model, then the head."""
    streams, heads = StreamSteps(teacher, evidence), AttentionSteps(teacher, evidence)
    streams.engram_rows()
    if not teacher.has_streams():
        evidence.findings.skip("prefill sub-steps of the layers", "this mode records no streams")
    else:
        for layer in range(teacher.config.num_hidden_layers):
            streams.engram(layer)
            streams.mixing(layer)
            heads.window_kv(layer)
            heads.stores(layer)
            heads.index(layer)
            heads.attention_core(layer)
            heads.output_projection(layer)
            streams.attention_expand(layer)
            streams.routing(layer)
            streams.experts(layer)
            streams.ffn_expand(layer)
        streams.taps()
        streams.final_norm()
    streams.head()
