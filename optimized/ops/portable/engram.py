"""Engram in int64 and float64."""

from __future__ import annotations

import torch

from optimized.ops.portable import tables
from optimized.ops.portable.rounding import mean_last, round_bf16, sum_last
from optimized.ops.registry import register


@register("engram_hash")
def engram_hash(
    history: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """[M, G] int64 to [M, (G - 1) * heads] int64."""
    products = history * multipliers
    mixed, columns = products[:, 0], []
    for gram in range(1, history.shape[1]):
        mixed = mixed ^ products[:, gram]
        columns.append(mixed[:, None] % primes[gram - 1])
    return torch.cat(columns, dim=1) + offsets


@register("engram_lookup")
def engram_lookup(rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[M, columns] int64 to [M, columns * k] bf16, exactly."""
    flat = rows.reshape(-1)
    values = tables.dequantize_fp8(codes.index_select(0, flat), scales.index_select(0, flat))
    return values.view(rows.shape[0], -1).to(torch.bfloat16)


@register("engram_gate")
def engram_gate(h: torch.Tensor, memory: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[M, C, D] bf16 to [M, C, D] bf16."""
    copies, width = h.shape[1:]
    stream = h.double()
    wide = memory.double().view(-1, copies + 1, width)
    key, value = wide[:, :copies], wide[:, copies:]
    norms = torch.rsqrt(mean_last(stream.square()) + eps) * torch.rsqrt(mean_last(key.square()) + eps)
    dot = sum_last(stream * weight * key) * norms * width**-0.5
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return round_bf16(stream + gate * value)
