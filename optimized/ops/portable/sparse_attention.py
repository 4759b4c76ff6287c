"""Attention in float64 over gathered keys; every row has a key list of one length, so every product has one shape."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from optimized.ops.packed import Packed
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import batched_matmul, round_bf16, sum_last
from optimized.ops.registry import register

_LOG2_E = math.log2(math.e)
_CPU_BLOCK_BYTES, _BLOCK_BYTES = 1 << 21, 1 << 28  # of gathered keys at a time: what a CPU's cache holds; elsewhere


class _Keys(NamedTuple):
    """Gathered keys [B, L, d] float64 and which of them are absent, [B, L] bool."""

    values: torch.Tensor
    absent: torch.Tensor


def _attend(q: torch.Tensor, parts: list[_Keys], sink: torch.Tensor, scale: float) -> torch.Tensor:
    """q [B, H, d], sink [H] times log2(e), float64. Sums run over the parts one after another. Returns [B, H, d]."""
    exponents = []
    for keys in parts:
        exponent = batched_matmul(q, keys.values.transpose(1, 2)).mul_(scale).mul_(_LOG2_E)
        exponents.append(exponent.masked_fill_(keys.absent[:, None], -torch.inf))
    exponent = exponents[0] if len(exponents) == 1 else torch.cat(exponents, dim=2)
    largest = torch.maximum(exponent.amax(dim=-1), sink).ceil_()[..., None]
    weight = torch.exp2(exponent.sub_(largest))
    total = sum_last(weight).add_(torch.exp2(sink[:, None] - largest))
    rounded = round_bf16(weight).double().split([keys.absent.shape[1] for keys in parts], dim=2)
    numerator = batched_matmul(rounded[0], parts[0].values)
    for share, keys in zip(rounded[1:], parts[1:], strict=True):
        numerator.add_(batched_matmul(share, keys.values))
    return numerator.div_(total)


def _window_keys(rows: Packed, ring: Packed, index: torch.Tensor) -> _Keys:
    """index [B, W]: i < N a row, i >= N the ring entry i - N, -1 = none."""
    absent = index < 0
    flat, count = index.reshape(-1), rows.codes.shape[0]
    codes, scales = (
        torch.where(
            (flat < count)[:, None],
            own.index_select(0, flat.clamp(0, max(count - 1, 0))) if count else own.new_zeros(1),
            kept.index_select(0, (flat - count).clamp(min=0)),
        )
        for own, kept in zip(rows, ring, strict=True)
    )
    values = tables.dequantize_fp8(codes, scales)
    return _Keys(values.view(*index.shape, -1).masked_fill_(absent[..., None], 0.0), absent)


def _entry_keys(entries: Packed, index: torch.Tensor) -> _Keys:
    """index [B, k] flat entries, -1 = none."""
    absent = index < 0
    flat = index.clamp(min=0).reshape(-1)
    values = tables.dequantize_nvfp4(entries.codes.index_select(0, flat), entries.scales.index_select(0, flat))
    return _Keys(values.view(*index.shape, -1).masked_fill_(absent[..., None], 0.0), absent)


@register("sparse_attention")
def sparse_attention(
    q: torch.Tensor,
    rows: Packed,
    ring: Packed,
    window_index: torch.Tensor,
    entries: Packed | None,
    entry_index: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """[M, H, d] bf16 to [M, H, d] bf16."""
    width = q.shape[2]
    sink = sink.double() * _LOG2_E
    length = window_index.shape[1] + (0 if entry_index is None else entry_index.shape[1])
    block = max(1, (_CPU_BLOCK_BYTES if q.device.type == "cpu" else _BLOCK_BYTES) // (8 * width * length))
    outputs = []
    for start in range(0, q.shape[0], block):
        some = slice(start, start + block)
        parts = [_window_keys(rows, ring, window_index[some])]
        if entries is not None and entry_index is not None:
            parts.append(_entry_keys(entries, entry_index[some]))
        outputs.append(_attend(q[some].double(), parts, sink, scale))
    return round_bf16(torch.cat(outputs)) if outputs else torch.empty_like(q)
