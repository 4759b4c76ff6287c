"""Rotation of the trailing channels of head vectors by position. It knows nothing about how angles are scaled.

Source: V4.1 model specification §4.1.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

ROPE = Operation("rope")


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inverse: bool = False) -> torch.Tensor:
    """Rotate the interleaved pairs (2i, 2i + 1) of the last r channels; the others pass. One rounding to bf16.

    Args:
        x: [M, H, d] bf16.
        cos, sin: [M, r / 2], of each row's angles.
        inverse: rotate by the negative angle.
    Returns:
        [M, H, d] bf16, a new tensor.
    """
    law = x.dim() == 3 and cos.shape == sin.shape and cos.shape[0] == x.shape[0] and 2 * cos.shape[1] <= x.shape[2]
    require(law and x.dtype == torch.bfloat16, "rope", "x [M, H, d] bfloat16, cos and sin [M, r/2]", x, cos, sin)
    return ROPE.on(x)(x, cos, sin, inverse)
