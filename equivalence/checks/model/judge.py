"""How a sub-step is judged: a mode's rows of the tolerance table, and what explains a quantised value that differs.

Knows recordings and the table; knows no sub-step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equivalence.checks.model.evidence import Evidence
from equivalence.checks.model.teacher import Rows, Teacher, join


class Judge:
    """Compares sub-steps of one mode of one pack with what was recorded."""

    def __init__(self, teacher: Teacher, evidence: Evidence) -> None:
        self.teacher = teacher
        self.evidence = evidence
        self.findings = evidence.findings
        self.bf16 = teacher.numerics.round_bf16

    def judge(self, sub_step: str, name: str, got: Rows | None, *rows: str) -> None:
        """Compare rows with `prefill.<name>` in the rows that both hold; list the tensor where either is absent."""
        want = self.teacher.recorded(name, None if got is None else got.start + got.values.shape[0])
        if want is None or got is None:
            why = "not recorded" if want is None else "an input of it is not recorded"
            self.findings.skip(f"prefill.{name}", why)
            return
        start, (mine, theirs) = join(got, want)
        item = f"prefill.{name}" + (f"(from row {start})" if start else "")
        self.evidence.values(sub_step, item, mine, theirs, rows)

    def judge_quantised(self, sub_step: str, name: str, versions: list[Tensor] | None, start: int = 0) -> None:
        """Compare a quantised tensor: equal, or as a value one step away would be quantised.

        versions: what the quantiser makes of the exact values and of those as good, each [R, ..., K].
        """
        if self.evidence.collecting:
            return
        count = None if versions is None else start + versions[0].shape[0]
        want = self.teacher.recorded(name, count)
        if versions is None or want is None:
            self.judge(sub_step, name, None if versions is None else Rows(versions[0], start))
            return
        _, (theirs, *mine) = join(want, *(Rows(version, start) for version in versions))
        equal = mine[0] == theirs  # [R, ..., K]
        explained = equal | _between(theirs, mine)  # [R, ..., K]
        item = f"prefill.{name}"
        self.findings.values(sub_step, item, torch.where(equal, theirs, mine[0]), theirs, "model.quantised")
        self.findings.values(f"{sub_step} margin", item, torch.where(explained, theirs, mine[0]), theirs, "exact")
        moved = int((~equal & explained).sum())
        if moved:
            self.findings.close_call(
                item, f"{moved} of {equal.numel()} quantised values that an input one step away explains"
            )


def _between(values: Tensor, versions: list[Tensor]) -> Tensor:
    low = torch.stack(versions).amin(dim=0)  # [...]
    high = torch.stack(versions).amax(dim=0)  # [...]
    return (values >= low) & (values <= high)  # [...]
