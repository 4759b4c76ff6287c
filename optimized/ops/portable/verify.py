"""The ratio test and its residual by two softmaxes in float64."""

from __future__ import annotations

import torch

from optimized.ops.registry import register

#: Residual mass at or below which a rejection can only come from rounding.
EMPTY_RESIDUAL = 1e-8


@register("judge_drafts")
def judge_drafts(
    target: torch.Tensor, proposal: torch.Tensor, drafts: torch.Tensor, words: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[D, V], [D, V], [D], [D] to [D] and [D, V]."""
    p, q = torch.softmax(target, dim=1), torch.softmax(proposal, dim=1)
    uniform = (words.double() + 0.5) * 2.0**-32
    places = drafts[:, None]
    kept = uniform * q.gather(1, places)[:, 0] < p.gather(1, places)[:, 0]
    rest = (p - alpha * q).clamp_(min=0)
    some = rest.sum(dim=1, keepdim=True) > EMPTY_RESIDUAL
    return kept, torch.log(torch.where(some, rest, p))
