"""Compares values, and explains those that differ by roundings that a float32 sum may decide either way.

The first pass over a pack compares plainly. Only if it fails, the sub-steps run again in nudged numerics (`collect`),
and a last pass accepts an element that lies between their results, as a close call. Knows the tolerance table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from equivalence.compare import bf16_codes
from equivalence.findings import Findings
from equivalence.tolerances import Measure, tolerance


@dataclass
class Evidence:
    """Where values go to be compared.

    findings: where comparisons are recorded; family: `official` or `fp32`, the rows of the table; collecting: keep
    values as alternatives instead of comparing them; alternatives: per (sub-step, item), what nudged numerics gave.
    """

    findings: Findings
    family: str
    collecting: bool = False
    alternatives: dict[tuple[str, str], list[Tensor]] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[str, str]:
        """The rows that judge the values of a sub-step."""
        return f"model.{self.family}.values", f"model.{self.family}.outlier"

    @property
    def layer_rows(self) -> tuple[str, str]:
        """The rows that judge whole layers of decode rows."""
        return f"model.{self.family}.layer", f"model.{self.family}.outlier"

    def values(
        self,
        sub_step: str,
        item: str,
        got: Tensor,
        want: Tensor,
        rows: tuple[str, ...] = (),
        keep: Tensor | None = None,
    ) -> None:
        """Compare `got` with `want` [R, ...] under the rows (default: `self.rows`) in the rows of the mask `keep`."""
        key = (sub_step, item)
        if self.collecting:
            self.alternatives.setdefault(key, []).append(got)
            return
        rows = rows or self.rows
        settled = got
        pooled = any(tolerance(row).share < 1 for row in rows)
        if pooled and key in self.alternatives and got.shape == want.shape:
            settled = self._settled(item, got, want, self.alternatives[key], rows[0])
        if keep is not None:
            got, want, settled = got[keep], want[keep], settled[keep]
        self.findings.values(sub_step, item, settled, want, *rows)
        if settled is not got:
            self.findings.values(f"{sub_step} unexplained or not", item, got, want, f"model.{self.family}.raw")

    def choice(self, sub_step: str, item: str, got: Tensor, want: Tensor) -> Tensor:
        """Settle rows of a choice, bool [R, n], whose every disputed element falls as recorded in some nudged numerics.

        Returns: the choice to compare; settled rows are the recorded ones and are listed as close calls.
        """
        key = (sub_step, item)
        if self.collecting:
            self.alternatives.setdefault(key, []).append(got)
        if key not in self.alternatives or got.shape != want.shape:
            return got
        reached = torch.stack([got, *self.alternatives[key]]) == want  # [N, R, n]
        settled = reached.any(dim=0).all(dim=-1) & (got != want).any(dim=-1)  # [R]
        for row in settled.nonzero().flatten().tolist():
            self.findings.close_call(f"{item}[{row}]", "one rounding either way explains the choice")
        return torch.where(settled[:, None], want, got)  # [R, n]

    def _settled(self, item: str, got: Tensor, want: Tensor, others: list[Tensor], row: str) -> Tensor:
        explained = _differs(got, want, row) & self._between(want, torch.stack([got, *others]), row)  # [R, ...]
        count = int(explained.sum())
        if count:
            self.findings.close_call(item, f"{count} of {got.numel()} values that one rounding either way explains")
        return torch.where(explained, want, got)  # [R, ...]

    @staticmethod
    def _between(want: Tensor, versions: Tensor, row: str) -> Tensor:
        if tolerance(row).measure is Measure.BF16_STEPS:
            versions, want = bf16_codes(versions), bf16_codes(want)
            slack: Tensor | float = tolerance(row).value
        else:
            slack = tolerance(row).value * want.square().mean().sqrt()
        return (want >= versions.amin(dim=0) - slack) & (want <= versions.amax(dim=0) + slack)  # [R, ...]


def _differs(got: Tensor, want: Tensor, row: str) -> Tensor:
    if tolerance(row).measure is Measure.BF16_STEPS:
        return (bf16_codes(got) - bf16_codes(want)).abs() > tolerance(row).value  # [R, ...]
    return (got - want).abs() > tolerance(row).value * want.square().mean().sqrt()  # [R, ...]
