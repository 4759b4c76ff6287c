"""Rotary position embedding with YaRN; knows positions and channels, not what they belong to.

Source: V4.1 model specification §4.1; YaRN, arXiv 2309.00071 (without its attention temperature).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.numerics import Numerics
from reference.spec import ModelConfig


def plain_frequencies(base: float, rotary_dims: int) -> Tensor:
    """base^(-2i/r) for i = 0 .. r/2-1, float32: [r/2]."""
    exponents = torch.arange(0, rotary_dims, 2, dtype=torch.float32) / rotary_dims  # [r/2]
    return 1.0 / (base**exponents)  # [r/2]


def yarn_frequencies(config: ModelConfig) -> Tensor:
    """Frequencies of the layers that read compressed KV, float32: [r/2]; plain ones where no scaling is configured."""
    dims = config.qk_rope_head_dim
    theta = plain_frequencies(config.compress_rope_theta, dims)  # [r/2]
    scaling = config.rope_scaling
    if scaling is None:
        return theta

    def correction(rotations: float) -> float:
        span = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dims * math.log(span) / (2 * math.log(config.compress_rope_theta))

    low = max(math.floor(correction(scaling.beta_fast)), 0)
    high = min(math.ceil(correction(scaling.beta_slow)), dims - 1)
    ramp = (torch.arange(dims // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)  # [r/2]
    ramp = ramp.clamp(0, 1)  # [r/2]
    return theta / scaling.factor * ramp + theta * (1 - ramp)  # [r/2]


def layer_frequencies(config: ModelConfig, ratio: int) -> Tensor:
    """Frequencies of a layer with compression ratio ``ratio``, float32: [r/2]. Ratio 0 (and the draft) has no YaRN."""
    return plain_frequencies(config.rope_theta, config.qk_rope_head_dim) if ratio == 0 else yarn_frequencies(config)


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, numerics: Numerics, inverse: bool = False) -> Tensor:
    """Rotate the interleaved pairs of the last r channels by position · frequency.

    Args:
        x: [..., T, d] or, with heads, [..., T, H, d]: the axis of ``positions`` is found by its rank.
        positions: int64, broadcastable to x's leading axes, such as [T] or [T, 1].
        frequencies: float32 [r/2]; the angle is a float32 product, its cosine and sine are taken in float64.
        inverse: rotate by the negative angle.
    Returns: the shape of x, rounded to bf16.
    """
    angles = (positions.to(torch.float32)[..., None] * frequencies).to(torch.float64)  # [..., T, r/2]
    cos = torch.cos(angles).to(x.dtype)  # [..., T, r/2]
    sin = torch.sin(angles).to(x.dtype)  # [..., T, r/2]
    sin = -sin if inverse else sin  # [..., T, r/2]
    rotary = 2 * frequencies.shape[-1]
    kept, rotated = x[..., :-rotary], x[..., -rotary:]  # [..., d-r], [..., r]
    even, odd = rotated[..., 0::2], rotated[..., 1::2]  # [..., r/2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)  # [..., r]
    return torch.cat((kept, numerics.bf16(turned)), dim=-1)  # [..., d]
