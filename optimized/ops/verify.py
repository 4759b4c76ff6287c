"""The ratio test of drafts against the rows of the target, and what is left of a row whose draft fails it.

Knows processed rows and random words; knows nothing about requests, blocks or how a token is drawn from a row.
Source: serving specification §1.7; Leviathan et al., arXiv 2211.17192.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

JUDGE_DRAFTS = Operation("judge_drafts")


def judge_drafts(
    target: torch.Tensor, proposal: torch.Tensor, drafts: torch.Tensor, words: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of D drafts pass u q < p, each for itself, and the rows that replace them where they do not.

    Args:
        target, proposal: [D, V] float64, processed rows of the target and of the draft, whose softmaxes are p and q.
        drafts: [D] int64. words: [D] int64, random 32-bit words r, u = (r + 1/2) 2^-32.
        alpha: share of q that the residual takes off.
    Returns:
        [D] bool, kept; [D, V] float64, logarithms of max(p - alpha q, 0), of p where these sum to 1e-8 or less.
    """
    count = target.shape[:1]
    fits = target.dim() == 2 and target.shape == proposal.shape and drafts.shape == words.shape == count
    require(fits, "judge_drafts", "target, proposal [D, V], drafts, words [D]", target, proposal, drafts, words)
    return JUDGE_DRAFTS.on(target)(target, proposal, drafts, words, alpha)
