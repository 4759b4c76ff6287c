"""The DSpark rows of a pack: blocks drafted from recorded target features and judged with recorded tokens fed back.

Knows how a recording lays out its drafts: row i starts from greedy id i, its features end one position before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equivalence.checks.model import choices, released_core
from equivalence.checks.model.decode_rows import DecodeRows, MissingTensorError
from equivalence.checks.model.evidence import Evidence
from equivalence.checks.model.teacher import Teacher
from equivalence.findings import Findings
from equivalence.packs import Recording
from reference.model import ReferenceModel, draft


def compare(teacher: Teacher, evidence: Evidence) -> None:
    """All draft rows of one mode, from the recorded features of the prompt and of the decode rows."""
    findings = evidence.findings
    if not teacher.config.has_draft or teacher.greedy is None or evidence.collecting:
        return
    try:
        taps = _recorded_taps(teacher, evidence, teacher.greedy)  # [S+G-1, targets·D]
    except MissingTensorError as error:
        findings.skip("dspark rows", str(error))
        return
    inputs = (teacher.model, taps, teacher.greedy, teacher.length, teacher.recording, findings)
    if not teacher.numerics.round_bf16:
        judge(*inputs, "model.fp32.draft")
        return
    with released_core.drafting(teacher.config.sliding_window) as cores:
        judge(*inputs, "model.official.draft")
    for block, (mine, released) in enumerate(cores):
        findings.values("draft core", f"dspark block {block} core", mine, released, "model.official.core")


def judge(
    model: ReferenceModel,
    taps: Tensor,
    greedy: Tensor,
    prompt_length: int,
    recording: Recording,
    findings: Findings,
    row: str,
) -> None:
    """Draft from every greedy id and compare logits, confidence and tokens.

    Args: taps: [at least S+G-1, targets·D]; greedy: int64 [G]; row: the tolerance of logits and confidence.
    """
    ids, logits = recording.whole("dspark.ids"), recording.whole("dspark.logits")  # [G, B+1], [G, B, V]
    confidence = recording.whole("dspark.confidence")  # [G, B]
    if ids is None or logits is None or confidence is None:
        findings.skip("dspark rows", "dspark.ids, .logits or .confidence is not recorded")
        return
    findings.values("draft anchors", "dspark.ids[:, 0]", ids[:, 0], greedy[: ids.shape[0]])
    anchors = torch.arange(ids.shape[0]) + prompt_length - 1  # [G]
    got = draft.propose(model, taps, ids[:, 0], anchors, previous=ids[:, :-1])
    findings.values("draft logits", "dspark.logits", got.logits, logits.to(got.logits.dtype), row)
    findings.values("draft confidence", "dspark.confidence", got.confidence, confidence.to(got.logits.dtype), row)
    scores = got.logits.flatten(0, 1)  # [G·B, V]
    margin = choices.bf16_step(scores.amax(dim=-1)) if model.numerics.round_bf16 else choices.float_margin()
    choices.tokens(findings, "dspark.ids[:, 1:]", scores, ids[:, 1:].flatten(), margin, chosen=got.ids.flatten())


def _recorded_taps(teacher: Teacher, evidence: Evidence, greedy: Tensor) -> Tensor:
    recorded = teacher.recorded("main_hidden")
    if recorded is None or recorded.start:
        raise MissingTensorError("prefill.main_hidden is not whole")
    rows = DecodeRows(teacher, evidence, greedy)
    taps = [draft.tap(rows.entering(layer), teacher.numerics) for layer in teacher.config.dspark_target_layer_ids]
    return torch.cat((recorded.values, torch.cat(taps, dim=-1)), dim=0)  # [S+G, targets·D]
