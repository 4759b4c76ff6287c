"""Collects what one case found: comparisons, differences, close calls, and what could not be compared.

Knows the tolerance table and the comparison; knows no model. A missing tensor is listed, never counted as passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from equivalence.compare import Measurement, compare, relative_rms
from equivalence.tolerances import Measure, Tolerance, tolerance

FEW_OUT = 0.9
"""Where fewer elements of a sub-step than this are inside, the difference is no matter of single roundings."""

EXPLAINABLE = ("decode selection", "decode experts", " margin")
"""Ends of the sub-steps whose exact comparisons follow computed, not recorded, values."""


@dataclass(frozen=True)
class Difference:
    """One finding against the case. item: what differs; kind: `values`, `choice`, `raised` or `pack`; detail: how."""

    item: str
    kind: str
    detail: str


@dataclass
class Tally:
    """All comparisons of one sub-step under one row.

    tensors and elements: how many were compared; beyond: elements outside; worst: the worst figure, over all tensors
    together for RELATIVE_RMS; first: where; squares: sums of (got - want)² and of want².
    """

    row: Tolerance
    tensors: int = 0
    elements: int = 0
    beyond: int = 0
    worst: float = 0.0
    first: str = ""
    squares: tuple[float, float] = (0.0, 0.0)

    @property
    def share(self) -> float:
        """Share of the elements inside the row's value."""
        return 1.0 - self.beyond / self.elements if self.elements else 1.0

    def add(self, item: str, found: Measurement) -> None:
        """Count one tensor in."""
        self.tensors += 1
        self.elements += found.elements
        self.beyond += found.beyond
        self.squares = (self.squares[0] + found.squares[0], self.squares[1] + found.squares[1])
        if self.row.measure is Measure.RELATIVE_RMS and found.measured != float("inf"):
            self.worst = relative_rms(self.squares)
        elif self.row.share == 1:
            self.worst = max(self.worst, found.measured)
        if found.first and not self.first:
            self.first = f"{item}{found.first}" if found.first.startswith("[") else f"{item}: {found.first}"


@dataclass
class Findings:
    """The outcome of one case, filled while it runs.

    differences: what counts against it; tallies: per (sub-step, row) what was measured; close_calls: choices that
    differ inside the margin of the recorded values; not_compared: recorded tensors that no comparison used, and why;
    figures: lines of measured numbers that a person reads and nothing judges.
    """

    differences: list[Difference] = field(default_factory=list)
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    close_calls: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    comparisons: int = 0
    closed: bool = False
    undisputed: int = 0
    """How many differences no other rounding of the same inputs can explain."""

    def values(self, sub_step: str, item: str, got: Tensor, want: Tensor, *rows: str) -> None:
        """Compare one tensor under each named row.

        sub_step: what the figures are pooled under; item: the tensor; got, want: [...]. A row that demands a share of
        the elements, or a relative rms, is judged over the whole case by `close`; every other row is judged here.
        """
        for name in rows or ("exact",):
            row = tolerance(name)
            found = compare(got, want, row)
            self.comparisons += 1
            self.tallies.setdefault((sub_step, name), Tally(row)).add(item, found)
            pooled = (row.share < 1 or row.measure is Measure.RELATIVE_RMS) and found.measured != float("inf")
            if not found.passed and not pooled:
                few = found.beyond <= (1 - FEW_OUT) * found.elements
                explainable = name == "exact" and sub_step.endswith(EXPLAINABLE) and few
                self.differ(item, "values", f"{describe(found, row)}; first {found.first}", explainable)

    def differ(self, item: str, kind: str, detail: str, explainable: bool = False) -> None:
        """Record a difference; explainable: whether another rounding of the same inputs might explain it."""
        self.differences.append(Difference(item, kind, detail))
        self.undisputed += not explainable

    def close_call(self, item: str, detail: str) -> None:
        """Record a choice that differs although the recorded values do not decide it."""
        self.close_calls.append(f"{item}: {detail}")

    def skip(self, item: str, why: str) -> None:
        """Record a tensor that was not compared."""
        self.not_compared.append(f"{item}: {why}")

    def close(self) -> Findings:
        """Judge the rows that are pooled over the case, after the last of them; calling it again does nothing."""
        if self.closed:
            return self
        self.closed = True
        for (sub_step, name), tally in self.tallies.items():
            row = tally.row
            if tally.share < row.share < 1:
                detail = f"only {tally.share:.6f} of {tally.elements} elements within {row.value:g} {row.measure}"
                text = f"{name}: {detail}, {row.share:g} asked; first {tally.first}"
                self.differ(sub_step, "values", text, explainable=tally.share >= FEW_OUT)
            if row.measure is Measure.RELATIVE_RMS and not tally.worst <= row.value:
                detail = f"{row.measure} {tally.worst:.6g} over {tally.elements} elements, allowed {row.value:g}"
                self.differ(sub_step, "values", f"{name}: {detail}; first {tally.first}")
        return self


def describe(found: Measurement, row: Tolerance) -> str:
    """One line: the figure, the limit, and how many elements are out."""
    return (
        f"{row.name}: {row.measure} {found.measured:.6g}, allowed {row.value:g}, {found.beyond} of {found.elements} out"
    )
