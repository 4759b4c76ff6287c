"""Logprobs and ranks of tokens, their own and those of the most likely ones, from rows of logits.

Knows rows and ids; knows nothing about which rows these are: the model's own, or what a token was drawn from. A token
at -inf is not among the most likely ones. Source: serving specification §5.4.
"""

from __future__ import annotations

import torch

from optimized.ops.sample import log_probabilities
from reference.spec.outputs import Logprob


def report(tokens: list[int], logits: torch.Tensor, counts: list[int]) -> list[dict[int, Logprob]]:
    """Each row's token first, then its most likely tokens, by (logit descending, id ascending).

    Args:
        tokens: W ids. logits: [W, V] float64. counts: W, how many most likely tokens each row reports.
    Returns:
        token id -> Logprob, with a float32 value and the rank 1 + number of strictly greater logits.
    """
    logprobs = log_probabilities(logits).float()  # [W, V]
    column = torch.tensor(tokens, device=logits.device)[:, None]  # [W, 1]
    own = logprobs.gather(1, column).squeeze(1).tolist()
    ranks = (1 + (logits > logits.gather(1, column)).sum(dim=1)).tolist()
    best = _most_likely(logits, logprobs, counts)
    return [
        {token: Logprob(logprob, rank), **reported}
        for token, logprob, rank, reported in zip(tokens, own, ranks, best, strict=True)
    ]


def _most_likely(logits: torch.Tensor, logprobs: torch.Tensor, counts: list[int]) -> list[dict[int, Logprob]]:
    """The first counts[w] ids of each row [W, V] by (logit descending, id ascending), with logprob and rank."""
    most = min(max(counts), logits.shape[1])
    if not most:
        return [{} for _ in counts]
    floor = torch.topk(logits, most, dim=1).values[:, -1:]  # [W, 1]
    candidate = (logits >= floor) & (logits > -torch.inf)  # [W, V]; more than `most` a row if some are equal
    rows, ids = candidate.nonzero(as_tuple=True)  # [C], [C]
    columns = (rows, ids, logits[rows, ids], logprobs[rows, ids])
    candidates: list[list[tuple[int, float, float]]] = [[] for _ in counts]
    for row, token, logit, logprob in zip(*(column.tolist() for column in columns), strict=True):
        candidates[row].append((token, logit, logprob))
    return [_ranked(some, count) for some, count in zip(candidates, counts, strict=True)]


def _ranked(candidates: list[tuple[int, float, float]], count: int) -> dict[int, Logprob]:
    """The best `count` of (id, logit, logprob), given by ascending id; equal logits have equal ranks."""
    reported: dict[int, Logprob] = {}
    rank, previous = 1, None
    for place, (token, logit, logprob) in enumerate(sorted(candidates, key=lambda one: -one[1])[:count], start=1):
        rank = rank if logit == previous else place
        previous = logit
        reported[token] = Logprob(logprob, rank)
    return reported
