"""Selections through one integer key a score: the order-preserving bits of the bf16 above, the reversed index below."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from optimized.ops.registry import register

_INDEX_BITS = 32
_LAST_INDEX = (1 << 31) - 1


def _ranking_keys(scores: torch.Tensor) -> torch.Tensor:
    """[M, n] bf16 to distinct int64 keys: a higher score, then a lower index, has the greater key."""
    bits = (scores + 0.0).view(torch.int16).long()  # + 0.0: a negative zero ties with zero
    ordered = torch.where(bits < 0, bits ^ 0x7FFF, bits)
    index = torch.arange(scores.shape[1], device=scores.device)
    return (ordered << _INDEX_BITS) + (_LAST_INDEX - index)


@register("select_candidates")
def select_candidates(scores: torch.Tensor, visible: torch.Tensor, block_size: int, blocks: int) -> torch.Tensor:
    """[M, n] bf16 to [M, ceil(n / block_size)] bool."""
    padded = F.pad(scores, (0, -scores.shape[1] % block_size), value=-torch.inf)
    best = padded.unflatten(1, (-1, block_size)).amax(dim=-1)
    newest = torch.div(visible - 1, block_size, rounding_mode="floor")[:, None]
    number = torch.arange(best.shape[1], device=scores.device)
    best = best.masked_fill(number == newest, torch.inf)
    kept = _ranking_keys(best).topk(min(blocks, best.shape[1]), dim=1, sorted=False).indices
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter_(1, kept, True)
    return chosen & (best > -torch.inf)


@register("select_topk")
def select_topk(
    scores: torch.Tensor, visible: torch.Tensor, k: int, candidates: torch.Tensor | None, block_size: int
) -> torch.Tensor:
    """[M, n] bf16 to [M, k] int64."""
    columns = scores.shape[1]
    allowed = torch.arange(columns, device=scores.device) < visible[:, None]
    if candidates is not None:
        allowed = allowed & candidates.repeat_interleave(block_size, dim=1)[:, :columns]
    keys = _ranking_keys(scores).masked_fill_(~allowed, torch.iinfo(torch.int64).min)
    best, index = keys.topk(min(k, columns), dim=1, sorted=False)
    index = index.masked_fill(best == torch.iinfo(torch.int64).min, columns).sort(dim=1).values
    return F.pad(index.masked_fill(index == columns, -1), (0, k - index.shape[1]), value=-1)
