"""Rounding of float64 to bfloat16 in one step, and sums whose order does not depend on the number of rows. Knows no
operation.

torch converts float64 to bfloat16 through float32, which rounds twice: about one value in 65,000 comes out different.
On CUDA, torch's row sums have another order for few rows than for many, and cuBLAS another kernel for one product than
for a batch of two or more (seen on an H200).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ROW_TILE = 8  # rows of every matrix product: the product of a row never depends on how many rows share the step

_DROPPED = 52 - 7  # fraction bits that float64 has and bfloat16 has not
_BELOW_HALF = (1 << (_DROPPED - 1)) - 1
_KEEP = -(1 << _DROPPED)
_LARGE = 1 << 14


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """Nearest bfloat16, ties to even, rounded once (below 2^-126, where bfloat16 is subnormal, possibly twice).

    Args:
        x: float64, any shape; NaN stays NaN.
    Returns:
        bfloat16 of the same shape.
    """
    if x.numel() >= _LARGE and x.device.type == "cpu":
        return _round_large(x)
    bits = x.view(torch.int64)
    bits = ((bits >> _DROPPED).bitwise_and_(1)).add_(bits).add_(_BELOW_HALF).bitwise_and_(_KEEP)
    return bits.view(torch.float64).to(torch.bfloat16)


def _round_large(x: torch.Tensor) -> torch.Tensor:
    """The same through float32: only a float32 that sits exactly between two bfloat16 values can have lost a tie."""
    single = x.float()
    halfway = (single.view(torch.int32) & 0xFFFF) == 0x8000
    where = halfway.view(-1).nonzero().squeeze(1)
    if where.numel():
        exact = x.reshape(-1).index_select(0, where)
        near = single.view(-1).index_select(0, where)
        toward = torch.sign(exact.abs() - near.double().abs()).to(torch.int32)
        nudged = (near.view(torch.int32) + toward).view(torch.float32)
        single.view(-1).index_copy_(0, where, nudged)
    return single.to(torch.bfloat16)


def tiled_matmul(x: torch.Tensor, operand: torch.Tensor) -> torch.Tensor:
    """x @ operand in tiles of ROW_TILE rows, each tile one product of the same shape.

    Args:
        x: [M, K] float64. operand: [K, N] float64, contiguous.
    Returns:
        [M, N] float64.
    """
    rows, depth = x.shape
    if rows == 0:
        return x.new_empty(0, operand.shape[1])
    padding = -rows % ROW_TILE
    if padding:
        x = F.pad(x, (0, 0, 0, padding))
    tiles = x.view(-1, ROW_TILE, depth)
    product = batched_matmul(tiles, operand.expand(tiles.shape[0], -1, -1)).view(-1, operand.shape[1])
    return product[:rows] if padding else product


def batched_matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[B, M, K] @ [B, K, N]; a product has the same bits in any batch."""
    if left.shape[0] == 1 and left.device.type != "cpu":
        return torch.bmm(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
    return torch.bmm(left, right)


def sum_last(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis, which stays: [..., D] to [..., 1]; outside the CPU by folding it in half repeatedly."""
    if x.device.type == "cpu":
        return x.sum(dim=-1, keepdim=True)
    while (width := x.shape[-1]) > 1:
        half = width // 2
        folded = x[..., :half] + x[..., half : 2 * half]
        x = torch.cat((folded, x[..., 2 * half :]), dim=-1) if width % 2 else folded
    return x


def mean_last(x: torch.Tensor) -> torch.Tensor:
    """Mean over the last axis, which stays: [..., D] to [..., 1]."""
    return x.mean(dim=-1, keepdim=True) if x.device.type == "cpu" else sum_last(x) / x.shape[-1]
