"""Numerics that round like the reference after nudging every value: what an equally good program may have rounded.

A value whose rounding a float32 sum may decide either way is rounded the other way by one of the two nudges. Knows no
sub-step. Used only to explain a quantised value that differs, never to change what is expected.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.numerics import Numerics

NUDGE = 2.0**-21
"""Some float32 roundings, relative to a value and to the rms of its row."""


@dataclass(frozen=True)
class NudgedNumerics(Numerics):
    """The reference's numerics with every value moved away from zero (nudge > 0) or towards it before it is rounded."""

    nudge: float = 0.0

    def bf16(self, x: Tensor) -> Tensor:
        """A named bf16 boundary; shape and dtype of ``x`` are kept."""
        size = x.square().mean(dim=-1, keepdim=True).sqrt()  # [..., 1]
        return super().bf16(x + self.nudge * torch.sign(x) * (x.abs() + size))


def alternatives(numerics: Numerics) -> tuple[Numerics, Numerics, Numerics]:
    """The numerics themselves, nudged away from zero, and nudged towards it."""
    fields = {field.name: getattr(numerics, field.name) for field in dataclasses.fields(Numerics)}
    return numerics, NudgedNumerics(**fields, nudge=NUDGE), NudgedNumerics(**fields, nudge=-NUDGE)
