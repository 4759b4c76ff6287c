"""Collects what one case found: comparisons, differences, close calls, and what could not be compared.

Knows the tolerance table and the comparison; knows no model. A missing tensor is listed, never counted as passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from equivalence.compare import Measurement, compare
from equivalence.tolerances import Tolerance, tolerance


@dataclass(frozen=True)
class Difference:
    """One finding against the case. item: what differs; kind: `values`, `choice`, `raised` or `pack`; detail: how."""

    item: str
    kind: str
    detail: str


@dataclass
class Tally:
    """All comparisons of one sub-step under one row.

    tensors and elements: how many were compared; beyond: elements outside; worst: the worst figure; first: where.
    """

    row: Tolerance
    tensors: int = 0
    elements: int = 0
    beyond: int = 0
    worst: float = 0.0
    first: str = ""

    @property
    def share(self) -> float:
        """Share of the elements inside the row's value."""
        return 1.0 - self.beyond / self.elements if self.elements else 1.0

    def add(self, item: str, found: Measurement) -> None:
        """Count one tensor in."""
        self.tensors += 1
        self.elements += found.elements
        self.beyond += found.beyond
        if self.row.share == 1:
            self.worst = max(self.worst, found.measured)
        if found.first and not self.first:
            self.first = f"{item}{found.first}" if found.first.startswith("[") else f"{item}: {found.first}"


@dataclass
class Findings:
    """The outcome of one case, filled while it runs.

    differences: what counts against it; tallies: per (sub-step, row) what was measured; close_calls: choices that
    differ inside the margin of the recorded values; not_compared: recorded tensors that no comparison used, and why.
    """

    differences: list[Difference] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    close_calls: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    comparisons: int = 0

    def values(self, sub_step: str, item: str, got: Tensor, want: Tensor, *rows: str) -> None:
        """Compare one tensor under each named row.

        sub_step: what the figures are pooled under; item: the tensor; got, want: [...]. A row that demands a share of
        the elements is judged over the whole case by `close`; every other row is judged here.
        """
        for name in rows or ("exact",):
            row = tolerance(name)
            found = compare(got, want, row)
            self.comparisons += 1
            self.tallies.setdefault((sub_step, name), Tally(row)).add(item, found)
            pooled = row.share < 1 and found.measured != float("inf")
            if not found.passed and not pooled:
                self.differ(item, "values", f"{describe(found, row)}; first {found.first}")

    def differ(self, item: str, kind: str, detail: str) -> None:
        """Record a difference."""
        self.differences.append(Difference(item, kind, detail))

    def close_call(self, item: str, detail: str) -> None:
        """Record a choice that differs although the recorded values do not decide it."""
        self.close_calls.append(f"{item}: {detail}")

    def skip(self, item: str, why: str) -> None:
        """Record a tensor that was not compared."""
        self.not_compared.append(f"{item}: {why}")

    def close(self) -> Findings:
        """Judge the pooled shares; call once, after the last comparison."""
        for (sub_step, name), tally in self.tallies.items():
            if tally.share < tally.row.share < 1:
                detail = (
                    f"{name}: only {tally.share:.6f} of {tally.elements} elements within {tally.row.value:g} "
                    f"{tally.row.measure}, {tally.row.share:g} asked; first {tally.first}"
                )
                self.differ(sub_step, "values", detail)
        return self


def describe(found: Measurement, row: Tolerance) -> str:
    """One line: the figure, the limit, and how many elements are out."""
    return (
        f"{row.name}: {row.measure} {found.measured:.6g}, allowed {row.value:g}, {found.beyond} of {found.elements} out"
    )
