"""Expert products in float64: every expert's rows are padded to row tiles, one product a tile.

On the CPU each expert's matrix is read where it lies, for as many tiles as it has; elsewhere the host does not know how
many that is, and each tile takes a copy of its expert's matrix.
"""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import ROW_TILE, batched_matmul, round_bf16
from optimized.ops.registry import register

_BLOCK_BYTES = 1 << 28  # of copied matrices at a time


def _grouped_matmul(x: torch.Tensor, group: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """[M, K] float64, group [M] ascending, operand [G, K, N] to [M, N] float64.

    Each group's rows start at a multiple of ROW_TILE in a padded copy; padding rows are zero.
    """
    groups, depth, width = operand.shape
    starts = torch.searchsorted(group, torch.arange(groups + 1, device=x.device))  # [G + 1] first row of each group
    tiles = (starts.diff() + (ROW_TILE - 1)) // ROW_TILE  # [G]
    ends = tiles.cumsum(0)  # [G]
    shift = (ends - tiles) * ROW_TILE - starts[:-1]  # [G]
    place = torch.arange(len(group), device=x.device) + shift.index_select(0, group)  # [M]
    multiply, count = _by_group, 0
    if x.device.type == "cpu":
        count = int(ends[-1])
    else:
        filled = min(len(group), groups)  # most tiles: a first row for each of so many groups, the others eight a tile
        multiply, count = _by_tile, filled + (len(group) - filled) // ROW_TILE
    padded = x.new_zeros(count, ROW_TILE, depth)
    padded.view(-1, depth).index_copy_(0, place, x)
    return multiply(padded, ends, operand).view(-1, width).index_select(0, place)


def _by_group(padded: torch.Tensor, ends: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """padded [T, ROW_TILE, K], ends [G] tile after each group's last to [T, ROW_TILE, N]; reads `ends` on the host."""
    product = padded.new_empty(*padded.shape[:2], operand.shape[2])
    start = 0
    for index, end in enumerate(ends.tolist()):
        if end > start:
            weight = operand[index].expand(end - start, -1, -1)
            torch.bmm(padded[start:end], weight, out=product[start:end])
            start = end
    return product


def _by_tile(padded: torch.Tensor, ends: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """The same without a look at `ends`; tiles after the last group's are zeros times that group's matrix."""
    groups, depth, width = operand.shape
    owner = torch.searchsorted(ends, torch.arange(len(padded), device=padded.device), right=True)
    owner = owner.clamp_(max=groups - 1)  # [T]
    block = max(1, _BLOCK_BYTES // (8 * depth * width))
    products = [
        batched_matmul(tiles, operand.index_select(0, some))
        for tiles, some in zip(padded.split(block), owner.split(block), strict=True)
    ]
    return torch.cat(products)


@register("grouped_fp4_linear")
def grouped_fp4_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(tables.fake_quantize_fp8(x), group, weight.operand))


@register("grouped_bf16_linear")
def grouped_bf16_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """[M, K] bf16 to [M, N] bf16."""
    return round_bf16(_grouped_matmul(x.double(), group, weight.operand))
