"""Numerics that round like the reference after nudging every value: what an equally good program may have rounded.

A value whose rounding a float32 sum may decide either way is rounded the other way by some of the nudges. Knows no
sub-step. Used only to explain a value that differs, never to change what is expected.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from reference.numerics import Numerics

NUDGE = 2.0**-21
"""Some float32 roundings, relative to a value and to the rms of its row."""

RANDOM_NUDGES = 3


@dataclass(frozen=True)
class NudgedNumerics(Numerics):
    """The reference's numerics with every value moved before it is rounded.

    direction: +1 away from zero, -1 towards it, 0 either way by a draw that `seed` and the tensor's size decide.
    """

    direction: int = 0
    seed: int = 0

    def bf16(self, x: Tensor) -> Tensor:
        """A named bf16 boundary; shape and dtype of ``x`` are kept."""
        size = x.square().mean(dim=-1, keepdim=True).sqrt()  # [..., 1]
        return super().bf16(x + NUDGE * self._signs(x) * (x.abs() + size))

    def _signs(self, x: Tensor) -> Tensor:
        if self.direction:
            return self.direction * torch.sign(x)
        generator = torch.Generator().manual_seed(self.seed + x.numel())
        return torch.randint(0, 2, x.shape, generator=generator) * 2 - 1  # [...]


def alternatives(numerics: Numerics) -> list[Numerics]:
    """Nudged away from zero, towards it, and at random."""
    directed: list[Numerics] = [_nudged(numerics, direction=1), _nudged(numerics, direction=-1)]
    return directed + [_nudged(numerics, seed=seed) for seed in range(1, RANDOM_NUDGES + 1)]


def _nudged(numerics: Numerics, direction: int = 0, seed: int = 0) -> NudgedNumerics:
    fields = {field.name: getattr(numerics, field.name) for field in dataclasses.fields(Numerics)}
    return NudgedNumerics(**fields, direction=direction, seed=seed)
