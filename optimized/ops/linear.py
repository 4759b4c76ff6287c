"""Matrix products of flat rows with one weight: FP8, bf16 and fp32 linears, and the block-diagonal one.

Row law: an output row depends on its input row and on K and N only; every product runs in tiles of a fixed row count.
It knows nothing about which layer it serves. Source: V4.1 model specification §2.1 (DeepSeek-V4.1 inference/model.py).
"""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.registry import Operation, require

FP8_LINEAR = Operation("fp8_linear", cuda="DeepGEMM or a TileLang kernel")
BF16_LINEAR = Operation("bf16_linear")
FP32_LINEAR = Operation("fp32_linear")
BLOCK_DIAGONAL_LINEAR = Operation("block_diagonal_linear")


def fp8_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] @ [N, K].T with the input quantised to FP8 blocks of 32 (power-of-two scales), one rounding to bf16.

    Args:
        x: [M, K] bf16.
    Returns:
        [M, N] bf16.
    """
    law = x.dim() == 2 and x.shape[1] == weight.in_features and x.dtype == torch.bfloat16
    require(law and weight.quantizes_input, "fp8_linear", "x [M, K] bfloat16, FP8 weight [K, N]", x, weight.operand)
    return FP8_LINEAR.on(x)(x, weight)


def bf16_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] @ [N, K].T without quantisation, one rounding to bf16.

    Args:
        x: [M, K] bf16.
    Returns:
        [M, N] bf16.
    """
    law = x.dim() == 2 and x.shape[1] == weight.in_features and x.dtype == torch.bfloat16
    require(law, "bf16_linear", "x [M, K] bfloat16, weight [K, N]", x, weight.operand)
    return BF16_LINEAR.on(x)(x, weight)


def fp32_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] @ [N, K].T carried in fp32 (float64 on the CPU), not rounded.

    Args:
        x: [M, K] bf16.
    Returns:
        [M, N] float64 on the CPU.
    """
    law = x.dim() == 2 and x.shape[1] == weight.in_features and x.dtype == torch.bfloat16
    require(law, "fp32_linear", "x [M, K] bfloat16, weight [K, N]", x, weight.operand)
    return FP32_LINEAR.on(x)(x, weight)


def linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """The linear that a quantised checkpoint stores in FP8 and a plain one in bf16 ([M, K] to [M, N], bf16)."""
    return fp8_linear(x, weight) if weight.quantizes_input else bf16_linear(x, weight)


def block_diagonal_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Each of G groups through its own matrix: y[:, g] = x[:, g] @ W[g].T, one rounding to bf16, no quantisation.

    Args:
        x: [M, G, K] bf16.
        weight: stack of G.
    Returns:
        [M, G * N] bf16, groups side by side.
    """
    law = x.dim() == 3 and x.shape[1:] == (weight.groups, weight.in_features) and x.dtype == torch.bfloat16
    require(law, "block_diagonal_linear", "x [M, G, K] bfloat16, weight [G, K, N]", x, weight.operand)
    return BLOCK_DIAGONAL_LINEAR.on(x)(x, weight)
