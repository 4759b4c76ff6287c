"""Compares two tensors under one row of the tolerance table: shape, then masks, then values.

Knows no model and no check. A failure carries the first differing coordinate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from equivalence.tolerances import Measure, Tolerance


@dataclass(frozen=True)
class Measurement:
    """What a comparison found.

    elements: how many were compared; beyond: how many lie outside the row's value; measured: the figure in the row's
    unit (where the row asks for a share, the share inside); passed: whether the row holds; first: text of the first
    coordinate that is out, with both values; empty when none is; squares: sums of (got - want)² and of want².
    """

    elements: int
    beyond: int
    measured: float
    passed: bool
    first: str
    squares: tuple[float, float] = (0.0, 0.0)


def bf16_codes(values: Tensor) -> Tensor:
    """Position of each value among the bfloat16 numbers: [...] int64, neighbours one apart, +0 and -0 both 0."""
    bits = values.to(torch.bfloat16).view(torch.int16).long()  # [...]
    magnitude = bits & 0x7FFF  # [...]
    return torch.where(bits < 0, -magnitude, magnitude)  # [...]


def compare(got: Tensor, want: Tensor, row: Tolerance) -> Measurement:
    """Compare under one row.

    Args: got, want: [...] of any dtype and equal shape; row: the tolerance.
    Returns: a Measurement. A difference in shape or in the NaN and infinity masks fails whatever the row says.
    """
    if got.shape != want.shape:
        return _failure(0, f"shape {tuple(got.shape)} is not {tuple(want.shape)}")
    if want.numel() == 0:
        return Measurement(0, 0, 0.0, True, "")
    got64 = got.detach().to(torch.float64)  # [...]
    want64 = want.detach().to(torch.float64)  # [...]
    mask = _mask_difference(got64, want64)
    if mask:
        return _failure(want.numel(), mask)
    finite = torch.isfinite(want64)  # [...]
    distance = _distance(got64, want64, row.measure)  # [...]
    distance = torch.where(finite, distance, torch.zeros_like(distance))  # [...]
    if row.measure is Measure.RELATIVE_RMS:
        return _judge_rms(got64, want64, finite, row)
    out = distance > row.value  # [...]
    beyond = int(out.sum())
    first = describe_first(out, got64, want64) if beyond else ""
    if row.share < 1:
        share = 1.0 - beyond / want.numel()
        return Measurement(want.numel(), beyond, share, share >= row.share, first)
    return Measurement(want.numel(), beyond, float(distance.max()), beyond == 0, first)


def describe_first(out: Tensor, got: Tensor, want: Tensor) -> str:
    """Text of the first true coordinate of `out` [...] in row-major order, with both values."""
    coordinate = tuple(int(axis) for axis in out.nonzero()[0])
    return f"{list(coordinate)}: got {float(got[coordinate]):.9g}, want {float(want[coordinate]):.9g}"


def _failure(elements: int, text: str) -> Measurement:
    return Measurement(elements, max(elements, 1), float("inf"), False, text)


def _mask_difference(got: Tensor, want: Tensor) -> str:
    masks = (
        ("NaN", torch.isnan(got), torch.isnan(want)),
        ("+inf", torch.isposinf(got), torch.isposinf(want)),
        ("-inf", torch.isneginf(got), torch.isneginf(want)),
    )
    for name, in_got, in_want in masks:
        out = in_got != in_want  # [...]
        if bool(out.any()):
            return f"{name} mask differs in {int(out.sum())} places, first at {describe_first(out, got, want)}"
    return ""


def _distance(got: Tensor, want: Tensor, measure: Measure) -> Tensor:
    if measure is Measure.BF16_STEPS:
        return (bf16_codes(got) - bf16_codes(want)).abs().to(torch.float64)  # [...]
    difference = (got - want).abs()  # [...]
    if measure is Measure.RELATIVE:
        return torch.where(difference == 0, difference, difference / want.abs())  # [...]
    if measure is Measure.RMS:
        return difference / _rms(want[torch.isfinite(want)])  # [...]
    return difference


def _judge_rms(got: Tensor, want: Tensor, finite: Tensor, row: Tolerance) -> Measurement:
    squares = (float((got - want)[finite].square().sum()), float(want[finite].square().sum()))
    measured = relative_rms(squares)
    passed = measured <= row.value
    out = finite & (got != want)  # [...]
    first = describe_first(out, got, want) if bool(out.any()) else ""
    return Measurement(want.numel(), 0 if passed else want.numel(), measured, passed, first, squares)


def relative_rms(squares: tuple[float, float]) -> float:
    """Root of the ratio of two sums of squares; infinite for anything over nothing or overflown, 0 for nothing."""
    if squares[0] == 0:
        return 0.0
    if not all(map(math.isfinite, squares)):
        return math.inf
    return math.sqrt(squares[0] / squares[1]) if squares[1] else math.inf


def _rms(values: Tensor) -> Tensor:
    if values.numel() == 0:
        return torch.tensor(torch.finfo(torch.float64).tiny, dtype=torch.float64)  # []
    largest = values.abs().max().clamp_min(torch.finfo(torch.float64).tiny)  # []
    return largest * (values / largest).square().mean().sqrt()  # [], no square overflows
