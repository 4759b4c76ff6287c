"""Bias, penalties and masks by index; the bits of a bitmask by shifts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from optimized.ops.adjust_logits import Adjustments, Entries
from optimized.ops.registry import register


@register("adjust_logits")
def adjust_logits(logits: torch.Tensor, adjustments: Adjustments) -> torch.Tensor:
    """[S, V] to [S, V]; every entry is computed alone."""
    z = logits.clone(memory_format=torch.contiguous_format)
    _change(z, adjustments.bias, torch.add)
    _change(z, adjustments.repetition, lambda old, by: torch.where(old > 0, old / by, old * by))
    _change(z, adjustments.frequency, torch.sub)
    _change(z, adjustments.presence, torch.sub)
    if adjustments.allowed is not None:
        z.masked_fill_(~adjustments.allowed, -torch.inf)
    _change(z, adjustments.banned, lambda old, _: torch.full_like(old, -torch.inf))
    return z


def _change(
    z: torch.Tensor, entries: Entries | None, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Replaces the entries' places of z [S, V] by what `change` makes of the old values and the entries' own."""
    if entries is not None:
        places, flat = entries.rows * z.shape[1] + entries.ids, z.view(-1)  # [E], [S * V]
        flat.index_copy_(0, places, change(flat.index_select(0, places), entries.values))


@register("unpack_bits")
def unpack_bits(words: torch.Tensor, count: int) -> torch.Tensor:
    """[S, W] int32 to [S, count] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :count].bool()
