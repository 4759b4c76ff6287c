"""Linears in float64 row tiles with one rounding. A quantised input is dequantised exactly before the product."""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import round_bf16, tiled_matmul
from optimized.ops.registry import register


@register("fp8_linear")
def fp8_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(tiled_matmul(tables.fake_quantize_fp8(x), weight.operand))


@register("bf16_linear")
def bf16_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(tiled_matmul(x.double(), weight.operand))


@register("fp32_linear")
def fp32_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] float64."""
    return tiled_matmul(x.double(), weight.operand)


@register("block_diagonal_linear")
def block_diagonal_linear(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, G, K] bf16 to [M, G * N] bf16, one group after another."""
    wide = x.double().transpose(0, 1).contiguous()
    groups = [tiled_matmul(wide[group], weight.operand[group]) for group in range(weight.groups)]
    return round_bf16(torch.cat(groups, dim=1))
