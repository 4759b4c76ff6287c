"""Root-mean-square normalisation; knows no layer. Source: V4.1 model specification §0."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.numerics import Numerics


def rms_norm(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """bf16( weight · x · rsqrt(mean(x²) + eps) ) over the last axis.

    Args:
        x: [..., D]; weight: [D], a plain multiplier; eps: added to the mean square (1e-20 in the release).
    Returns: [..., D], rounded once.
    """
    mean_square = x.square().mean(dim=-1, keepdim=True)  # [..., 1]
    return numerics.bf16(weight * (x * torch.rsqrt(mean_square + eps)))  # [..., D]
