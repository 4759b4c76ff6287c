"""Rotation in float64."""

from __future__ import annotations

import torch

from optimized.ops.portable.rounding import round_bf16
from optimized.ops.registry import register


@register("rope")
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool) -> torch.Tensor:
    """[M, H, d] bf16 to [M, H, d] bf16."""
    rotary = 2 * cos.shape[1]
    even, odd = x[..., -rotary:].double().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    if inverse:
        sin = -sin
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    result = x.clone()
    result[..., -rotary:] = round_bf16(rotated)
    return result
