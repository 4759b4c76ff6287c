"""Expert products in float64: every expert's rows are padded to row tiles, one product a tile."""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import round_bf16, tiled_matmul
from optimized.ops.registry import register


def _grouped_matmul(x: torch.Tensor, group: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """[M, K] float64, group [M] ascending, operand [G, K, N] to [M, N] float64."""
    counts = torch.bincount(group, minlength=operand.shape[0]).tolist()
    products, start = [], 0
    for index, count in enumerate(counts):
        if count:
            products.append(tiled_matmul(x[start : start + count], operand[index]))
            start += count
    return torch.cat(products) if products else x.new_empty(0, operand.shape[2])


@register("grouped_fp4_linear")
def grouped_fp4_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(tables.fake_quantize_fp8(x), group, weight.operand))


@register("grouped_bf16_linear")
def grouped_bf16_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(x.double(), group, weight.operand))
