"""Random inputs for operations, and independent, slow statements of what the byte formats mean. Knows no operation."""

from __future__ import annotations

import fractions
import math

import numpy as np
import torch

#: Row counts around every tile boundary (serving specification §4.2).
ROW_COUNTS = (1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257)

E4M3_GRID = sorted({2.0**-9 * m for m in range(8)} | {(1 + m / 8) * 2.0**e for e in range(-6, 9) for m in range(8)})[
    :-1
]
E2M1_GRID = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """float64 normal values."""
    return torch.from_numpy(rng.standard_normal(shape) * scale)


def bf16(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """bfloat16 normal values."""
    return normal(rng, *shape, scale=scale).to(torch.bfloat16)


def codes(rng: np.random.Generator, *shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    """uint8 codes low .. high - 1."""
    return torch.from_numpy(rng.integers(low, high, size=shape, dtype=np.uint8))


def e4m3_codes(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    """uint8 E4M3 codes without NaN."""
    drawn = codes(rng, *shape)
    return torch.where((drawn & 0x7F) == 0x7F, torch.zeros_like(drawn), drawn)


def every_bf16(limit: float) -> torch.Tensor:
    """All finite bfloat16 values of magnitude at most `limit`, both zeros among them."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return values[values.float().abs() <= limit]


def nearest_on(grid: list[float], values: np.ndarray) -> list[float]:
    """Nearest grid magnitudes, ties to the even index, signs kept.

    Args:
        values: float64 with few significant bits, so that their distances to the grid are exact.
    """
    distance = np.abs(np.array(grid) - np.abs(values)[:, None])
    nearest = distance == distance.min(axis=1, keepdims=True)
    nearest[:, 1::2] &= ~nearest[:, 0::2].any(axis=1, keepdims=True)
    return np.copysign(np.array(grid)[nearest.argmax(axis=1)], values).tolist()


def nearest_bf16(value: float) -> float:
    """Nearest bfloat16 of a finite float64 in the normal range, ties to even, in exact arithmetic."""
    if value == 0:
        return value
    mantissa, exponent = math.frexp(value)
    scaled = fractions.Fraction(mantissa) * 256
    whole = math.floor(scaled)
    rest = scaled - whole
    if rest > fractions.Fraction(1, 2) or (rest == fractions.Fraction(1, 2) and whole % 2):
        whole += 1
    return math.ldexp(whole, exponent - 8)
