"""Root-mean-square normalisation of rows. It knows nothing about where the weight multiplies next.

Source: V4.1 model specification §0 (RMS), DeepSeek-V4.1 inference/model.py.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

RMS_NORM = Operation("rms_norm")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """bf16(weight * x * rsqrt(mean(x^2) + eps)), one rounding at the end.

    Args:
        x: [M, D] bf16. weight: [D], multiplies directly (no "1 + weight"). eps: inside the root.
    Returns:
        [M, D] bf16.
    """
    law = x.dim() == 2 and weight.shape == x.shape[1:] and x.dtype == torch.bfloat16
    require(law, "rms_norm", "x [M, D] bfloat16, weight [D]", x, weight)
    return RMS_NORM.on(x)(x, weight, eps)
