"""Row normalisation in float64."""

from __future__ import annotations

import torch

from optimized.ops.portable.rounding import mean_last, round_bf16
from optimized.ops.registry import register


@register("rms_norm")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[M, D] bf16 to [M, D] bf16."""
    wide = x.double()
    inverse = torch.rsqrt(mean_last(wide.square()).add_(eps))
    return round_bf16(wide.mul_(inverse).mul_(weight))
