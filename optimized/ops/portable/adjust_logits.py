"""Bias, penalties and masks by index; the bits of a bitmask by shifts."""

from __future__ import annotations

import torch

from optimized.ops.adjust_logits import Adjustments
from optimized.ops.registry import register


@register("adjust_logits")
def adjust_logits(logits: torch.Tensor, adjustments: Adjustments) -> torch.Tensor:
    """[S, V] to [S, V]; every entry is computed alone."""
    z = logits.clone()
    if (one := adjustments.bias) is not None:
        z[one.rows, one.ids] += one.values
    if (one := adjustments.repetition) is not None:
        old = z[one.rows, one.ids]
        z[one.rows, one.ids] = torch.where(old > 0, old / one.values, old * one.values)
    for one in (adjustments.frequency, adjustments.presence):
        if one is not None:
            z[one.rows, one.ids] -= one.values
    if adjustments.allowed is not None:
        z = z.masked_fill_(~adjustments.allowed, -torch.inf)
    if (one := adjustments.banned) is not None:
        z[one.rows, one.ids] = -torch.inf
    return z


@register("unpack_bits")
def unpack_bits(words: torch.Tensor, count: int) -> torch.Tensor:
    """[S, W] int32 to [S, count] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :count].bool()
