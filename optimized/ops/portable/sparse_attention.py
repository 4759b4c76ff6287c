"""Attention in float64 over gathered keys; every row has a key list of one length, so every product has one shape."""

from __future__ import annotations

import math

import torch

from optimized.ops.packed import Packed
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import round_bf16
from optimized.ops.registry import register

_LOG2_E = math.log2(math.e)
_BLOCK_BYTES = 1 << 24  # of gathered keys at a time


def _attend(
    q: torch.Tensor, keys: torch.Tensor, absent: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [B, H, d], keys [B, L, d], absent [B, L] bool, sink [H] times log2(e); all float64. Returns [B, H, d]."""
    exponent = torch.bmm(q, keys.transpose(1, 2)).mul_(scale).mul_(_LOG2_E)
    exponent.masked_fill_(absent[:, None], -torch.inf)
    largest = torch.maximum(exponent.amax(dim=-1), sink).ceil_()[..., None]
    weight = torch.exp2(exponent.sub_(largest))
    total = weight.sum(dim=-1, keepdim=True).add_(torch.exp2(sink[:, None] - largest))
    return torch.bmm(round_bf16(weight).double(), keys).div_(total)


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
    nothing = torch.zeros(1, width, dtype=torch.float64, device=q.device)
    window = torch.cat((tables.dequantize_fp8(*rows), tables.dequantize_fp8(*ring), nothing))
    sink = sink.double() * _LOG2_E
    length = window_index.shape[1] + (0 if entry_index is None else entry_index.shape[1])
    block = max(1, _BLOCK_BYTES // (8 * width * length))
    outputs = []
    for start in range(0, q.shape[0], block):
        index = window_index[start : start + block]
        absent = index < 0
        index = index.masked_fill(absent, window.shape[0] - 1)
        keys = window.index_select(0, index.reshape(-1)).view(*index.shape, width)
        if entries is not None and entry_index is not None:
            index = entry_index[start : start + block]
            missing = index < 0
            flat = index.clamp(min=0).reshape(-1)
            values = tables.dequantize_nvfp4(entries.codes.index_select(0, flat), entries.scales.index_select(0, flat))
            values = values.view(*index.shape, width).masked_fill_(missing[..., None], 0.0)
            keys, absent = torch.cat((keys, values), dim=1), torch.cat((absent, missing), dim=1)
        outputs.append(_attend(q[start : start + block].double(), keys, absent, sink, scale))
    return round_bf16(torch.cat(outputs)) if outputs else torch.empty_like(q)
