"""Survivals slot by slot, and the split of a budget by one stable sort."""

from __future__ import annotations

import math

import torch

from optimized.ops.registry import register

#: Candidates less likely to survive than this are never verified; compared in float64.
LEAST_SURVIVAL = 1e-6
_LEAST_LOGIT = -700.0


@register("survivals")
def survivals(confidence: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """[R, n] to [R, n] float32; `cumprod` would multiply in float64."""
    known = torch.nan_to_num(confidence.double() / temperatures, nan=_LEAST_LOGIT, posinf=math.inf, neginf=-math.inf)
    logits = known.clamp_(min=_LEAST_LOGIT)
    through = torch.reciprocal(1.0 + torch.exp(-logits)).float()
    for slot in range(1, through.shape[1]):
        through[:, slot] *= through[:, slot - 1]
    return through


@register("select_lengths")
def select_lengths(survival: torch.Tensor, most: torch.Tensor, budget: int) -> torch.Tensor:
    """[R, n], [R] to [R] int64."""
    requests, slots = survival.shape
    exists = torch.arange(slots, device=survival.device) < most[:, None]
    eligible = exists & (survival.double() >= LEAST_SURVIVAL)
    by_slot = torch.where(eligible, survival, -1.0).t().flatten()
    taken = torch.sort(by_slot, descending=True, stable=True).indices[: max(budget, 0)]
    counted = (by_slot[taken] > 0).long()
    return torch.zeros_like(most).scatter_add_(0, taken % max(requests, 1), counted)
