"""Part `golden` of check `model`: reads packs, builds the reference in a mode's numerics, and picks the comparison.

Knows which switches of the reference mean which mode; the comparisons themselves are in the modules beside it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from equivalence.cases import Case
from equivalence.checks.model import decode_rows, draft_rows, end_to_end, sub_steps
from equivalence.checks.model.teacher import Teacher
from equivalence.findings import Findings
from equivalence.packs import Pack, find_packs
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


def cases(folder: Path) -> list[Case]:
    """One case a pack and recorded mode. Raises SetupError when the folder holds no pack."""
    return [
        Case("model", f"golden/{pack.name}/{mode}", {"part": "golden", "pack": pack.name, "mode": mode})
        for pack in find_packs(folder)
        for mode in pack.modes
    ]


def run(case: Case, folder: Path) -> Findings:
    """Compare one mode of one pack."""
    pack, mode = Pack(folder / str(case.params["pack"])), str(case.params["mode"])
    findings = Findings()
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
            teacher = Teacher(model, pack.input_ids, recording, mode)
            sub_steps.compare(teacher, findings)
            decode_rows.compare(teacher, findings)
            draft_rows.compare(teacher, findings)
    for key in recording.unused():
        findings.skip(key, "no comparison uses it")
    if not findings.comparisons:
        findings.differ(pack.name, "pack", f"nothing in mode {mode} could be compared")
    return findings.close()


@functools.lru_cache(maxsize=2)
def _checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)
