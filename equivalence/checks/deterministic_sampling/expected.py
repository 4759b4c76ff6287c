"""What a request must give: which engine options decide it, and what the reference makes of it under these.

Knows the promises of both verification rules; knows no circumstance.
"""

from __future__ import annotations

from typing import Any

import torch

from equivalence.generators import batches
from equivalence.generators.batches import Request
from equivalence.generators.checkpoints import Voices
from reference import verification
from reference.generate import generate
from reference.spec import RequestOutput, SamplingParams
from reference.speculation import Block, DSpark, Speculation

Rule = dict[str, Any]
"""Engine options that decide a text; none: it is the text without drafts."""


def rule_of(request: Request, engine: dict[str, Any]) -> Rule | None:
    """The options that decide a request's text; None where the lengths of others' blocks decide it too."""
    if engine.get("verification") != "ratio" or request["params"]["temperature"] == 0:
        return {}
    if engine["verification_lengths"] == "scheduled":
        return None
    return {name: engine[name] for name in ("nextn", "verification", "penalised_residual", "verification_lengths")}


def by_reference(
    voices: Voices, request: Request, engine: dict[str, Any], got: RequestOutput, max_model_len: int
) -> tuple[RequestOutput, list[Block]]:
    """What the reference generates, and its blocks where the engine's are the same by promise: with fixed lengths.

    got: what it may turn out to be, which saves forward passes and changes nothing.
    """
    if not engine["nextn"] or engine["verification_lengths"] == "scheduled":
        runner = batches.OnePass(voices.model, batches.whole_sequences(request, got))
        return batches.expected(runner, voices.tokenizer, request, max_model_len), []
    blocks: list[Block] = []
    alpha = verification.PENALISED if engine.get("penalised_residual") else 1.0
    rule = engine.get("verification", "coupled")
    speculation = Speculation(DSpark(voices.model), engine["nextn"], rule, alpha, record=blocks.append)
    params = SamplingParams(**request["params"])
    with torch.no_grad():
        made = generate(
            voices.model,
            voices.tokenizer,
            request["prompt"],
            params,
            0,
            max_model_len=max_model_len,
            complete=speculation,
        )
    return made, blocks
