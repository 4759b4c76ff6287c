"""Gated pooling in float64, tokens of a group in ascending position."""

from __future__ import annotations

import torch

from optimized.ops.portable.rounding import round_bf16
from optimized.ops.registry import register


@register("compress_kv")
def compress_kv(rows: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """rows [M, 2, d], state [E, 2, d], index [M, ratio] to [M, d] bf16."""
    source = torch.cat((rows, state))
    members = source.index_select(0, index.reshape(-1)).view(*index.shape, *rows.shape[1:])
    value, gate = members.unbind(dim=2)
    weight = torch.exp(gate - gate.amax(dim=1, keepdim=True))
    weight = weight / weight.sum(dim=1, keepdim=True)
    return round_bf16((weight * value).sum(dim=1))
