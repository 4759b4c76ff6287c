"""Rotation angles of the model's two kinds of layer. Knows positions and frequencies; knows nothing about vectors.

Source: V4.1 model specification §4.1; YaRN, arXiv 2309.00071 (without its attention temperature).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from reference.spec.config import ModelConfig, RopeScaling


class Rotation(NamedTuple):
    """cos and sin of rows' angles, [M, r/2] each (float64 on the CPU)."""

    cos: torch.Tensor
    sin: torch.Tensor


class RopeFrequencies(NamedTuple):
    """float32 [r/2] each: plain for layers of ratio 0 and the draft, compressed for layers that read compressed KV."""

    plain: torch.Tensor
    compressed: torch.Tensor


def rope_frequencies(config: ModelConfig, device: torch.device) -> RopeFrequencies:
    """Both tables, made once on the host."""
    rotary = config.qk_rope_head_dim
    plain = _base_frequencies(config.rope_theta, rotary)
    compressed = _base_frequencies(config.compress_rope_theta, rotary)
    if config.rope_scaling is not None:
        compressed = _yarn(compressed, config.compress_rope_theta, config.rope_scaling)
    return RopeFrequencies(plain.to(device), compressed.to(device))


def rotation(positions: torch.Tensor, frequencies: torch.Tensor) -> Rotation:
    """Angles are float32 products of position and frequency; their cosine and sine are taken in float64.

    Args:
        positions: [M] int64. frequencies: [r/2] float32.
    """
    angles = (positions.float()[:, None] * frequencies).double()
    return Rotation(torch.cos(angles), torch.sin(angles))


def _base_frequencies(base: float, rotary: int) -> torch.Tensor:
    return 1.0 / (base ** (torch.arange(0, rotary, 2, dtype=torch.float32) / rotary))


def _yarn(theta: torch.Tensor, base: float, scaling: RopeScaling) -> torch.Tensor:
    """Frequencies below the ramp stay, above it are divided by the factor. theta: [r/2]."""
    rotary = 2 * len(theta)

    def channel(turns: float) -> float:
        """The (fractional) rotary channel that makes so many turns over the original context."""
        period = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return rotary * math.log(period) / (2 * math.log(base))

    low = max(math.floor(channel(scaling.beta_fast)), 0)
    high = min(math.ceil(channel(scaling.beta_slow)), rotary - 1)
    ramp = ((torch.arange(len(theta), dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return theta / scaling.factor * ramp + theta * (1 - ramp)
