"""Expert products in float64: every expert's rows are padded to row tiles, one product a tile."""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import ROW_TILE, round_bf16
from optimized.ops.registry import register


def _grouped_matmul(x: torch.Tensor, group: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """[M, K] float64, group [M] ascending, operand [G, K, N] to [M, N] float64.

    Each group's rows start at a multiple of ROW_TILE in a padded copy; padding rows are zero.
    """
    groups, depth, width = operand.shape
    counts = torch.bincount(group, minlength=groups)
    tiles = (counts + (ROW_TILE - 1)) // ROW_TILE
    shift = (tiles.cumsum(0) - tiles) * ROW_TILE - (counts.cumsum(0) - counts)
    place = torch.arange(len(group), device=x.device) + shift[group]
    tile_counts = tiles.tolist()
    padded = x.new_zeros(sum(tile_counts), ROW_TILE, depth)
    padded.view(-1, depth).index_copy_(0, place, x)
    product = x.new_empty(padded.shape[0], ROW_TILE, width)
    start = 0
    for index, count in enumerate(tile_counts):
        if count:
            weight = operand[index].expand(count, -1, -1)
            torch.bmm(padded[start : start + count], weight, out=product[start : start + count])
            start += count
    return product.view(-1, width).index_select(0, place)


@register("grouped_fp4_linear")
def grouped_fp4_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(tables.fake_quantize_fp8(x), group, weight.operand))


@register("grouped_bf16_linear")
def grouped_bf16_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(x.double(), group, weight.operand))
