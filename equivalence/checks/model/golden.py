"""Part `golden` of check `model`: reads packs, builds the reference in a mode's numerics, and picks the comparison.

Knows which switches of the reference mean which mode; the comparisons themselves are in the modules beside it.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import torch
from torch import Tensor

from equivalence.cases import Case
from equivalence.checks.model import decode_rows, draft_rows, end_to_end, nudged, sub_steps
from equivalence.checks.model.evidence import Evidence
from equivalence.checks.model.teacher import Teacher
from equivalence.findings import Findings
from equivalence.packs import Pack, Recording, find_packs
from reference.checkpoint import Checkpoint, load_checkpoint
from reference.model import ReferenceModel
from reference.numerics import Numerics

NUMERICS = {
    "fp32_noq": Numerics(round_bf16=False, quantize_activations=False, quantize_caches=False),
    "official": Numerics(),
    "fp32": Numerics(round_bf16=False, quantize_activations=False),
    "fp32_aq": Numerics(round_bf16=False),
    "bf16": Numerics(quantize_activations=False),
}

NOTHING = "nothing"
"""Stands for the mode of a pack that records none."""


def cases(folder: Path) -> list[Case]:
    """One case a pack and recorded mode; a pack without modes is a case that fails. SetupError: no pack at all."""
    return [
        Case("model", f"golden/{pack.name}/{mode}", {"part": "golden", "pack": pack.name, "mode": mode})
        for pack in find_packs(folder)
        for mode in pack.modes or (NOTHING,)
    ]


def run(case: Case, folder: Path) -> Findings:
    """Compare one mode of one pack."""
    pack, mode = Pack(folder / str(case.params["pack"])), str(case.params["mode"])
    findings = Findings()
    if mode == NOTHING:
        findings.differ(pack.name, "pack", "no expected_MODE.safetensors")
        return findings.close()
    if mode not in NUMERICS:
        findings.skip(f"expected_{mode}.safetensors", f"unknown mode; known are {', '.join(NUMERICS)}")
        return findings.close()
    recording = pack.expected(mode)
    checkpoint = _checkpoint(pack.folder)
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map, NUMERICS[mode])
    with torch.no_grad():
        if mode == "fp32_noq":
            end_to_end.compare(model, pack.input_ids, recording, findings)
        else:
            findings = _sub_steps(model, pack.input_ids, recording)
    for key in recording.unused():
        findings.skip(key, "no comparison uses it")
    if not findings.comparisons:
        findings.differ(pack.name, "pack", f"nothing in mode {mode} could be compared")
    if pack.token_map is not None and checkpoint.token_map is not None:
        findings.values("token map", "engram_token_map", checkpoint.token_map, pack.token_map)
    return findings.close()


def _sub_steps(model: ReferenceModel, prompt: Tensor, recording: Recording) -> Findings:
    """Compare plainly; where that fails by few elements, again with what nudged numerics give at hand."""
    family = "official" if model.numerics.round_bf16 else "fp32"
    plain = Evidence(Findings(), family)
    _one_pass(model, prompt, recording, plain)
    if not plain.findings.close().differences or plain.findings.undisputed:
        return plain.findings
    collected = Evidence(Findings(), family, collecting=True)
    for numerics in nudged.alternatives(model.numerics):
        other = copy.copy(model)
        other.numerics = numerics
        _one_pass(other, prompt, recording, collected)
    explained = Evidence(Findings(), family, alternatives=collected.alternatives)
    _one_pass(model, prompt, recording, explained)
    return explained.findings


def _one_pass(model: ReferenceModel, prompt: Tensor, recording: Recording, evidence: Evidence) -> None:
    teacher = Teacher(model, prompt, recording, wide=bool(evidence.alternatives))
    sub_steps.compare(teacher, evidence)
    decode_rows.compare(teacher, evidence)
    draft_rows.compare(teacher, evidence)


@functools.lru_cache(maxsize=2)
def _checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)
