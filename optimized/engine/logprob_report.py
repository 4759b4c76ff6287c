"""Logprobs and ranks of tokens, their own and those of the most likely ones, from rows of logits.

Knows rows and ids; knows nothing about which rows these are: the model's own, or what a token was drawn from. A token
at -inf is not among the most likely ones. What the report needs of the rows is gathered on their device, in shapes that
the host knows beforehand; the rest is done by the host. Source: serving specification §5.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.ops.sample import log_probabilities
from reference.spec.outputs import Logprob


@dataclass(frozen=True)
class Findings:
    """What W rows of logits say about a token each and about the most likely ones.

    own: [W] float32 logprobs of the tokens. ranks: [W] int64, 1 + number of strictly greater logits.
    ids, logits, logprobs: [W, C] int64, float64, float32 candidates, -inf logits where there is none: every token above
    the k-th logit, and as many of those equal to it as can be wanted, the lowest ids of them.
    """

    own: torch.Tensor
    ranks: torch.Tensor
    ids: torch.Tensor
    logits: torch.Tensor
    logprobs: torch.Tensor

    def of_rows(self, places: list[int]) -> Findings:
        """Those of some of the rows."""
        return Findings(*(column[places] for column in vars(self).values()))

    def report(self, tokens: list[int], counts: list[int]) -> list[dict[int, Logprob]]:
        """Each row's token first, then its most likely tokens, by (logit descending, id ascending).

        Args:
            tokens: W ids, those that were gathered for. counts: W, how many most likely tokens each row reports.
        Returns:
            token id -> Logprob, with a float32 value and the rank 1 + number of strictly greater logits.
        """
        columns = vars(self).values()
        return [
            {token: Logprob(own, rank), **_most_likely(zip(ids, logits, logprobs, strict=True), count)}
            for token, count, own, rank, ids, logits, logprobs in zip(
                tokens, counts, *(column.tolist() for column in columns), strict=True
            )
        ]


def find(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> Findings:
    """Gathers what a report needs.

    Args:
        logits: [W, V] float64. tokens: [W] int64. most: how many most likely tokens any row reports, k.
    """
    logprobs = log_probabilities(logits)  # [W, V]
    token = tokens[:, None]  # [W, 1]
    ids, values = _candidates(logits, min(most, logits.shape[1]))  # [W, C], [W, C]
    return Findings(
        own=logprobs.gather(1, token)[:, 0].float(),
        ranks=1 + (logits > logits.gather(1, token)).sum(dim=1),
        ids=ids,
        logits=values,
        logprobs=logprobs.gather(1, ids).float(),
    )


def report(tokens: list[int], logits: torch.Tensor, counts: list[int]) -> list[dict[int, Logprob]]:
    """The report of rows that are at hand; see ``Findings.report``.

    Args:
        tokens: W ids. logits: [W, V] float64. counts: W.
    """
    column = torch.tensor(tokens, dtype=torch.int64, device=logits.device)  # [W]
    return find(logits, column, max(counts)).report(tokens, counts)


def _candidates(logits: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[W, 2 k] ids and logits of each row [W, V] among which the first k by (logit descending, id ascending) are."""
    if not most:
        return torch.empty_like(logits[:, :0], dtype=torch.int64), logits[:, :0]
    size = logits.shape[1]
    best = torch.topk(logits, most, dim=1)  # [W, k]; which of equal ones are taken is not said
    floor = best.values[:, -1:]  # [W, 1]
    backwards = torch.arange(size, 0, -1, device=logits.device)  # [V]
    lowest = torch.topk(torch.where(logits == floor, backwards, 0), most, dim=1).values  # [W, k]
    ids = torch.cat((best.indices, (size - lowest).clamp_(max=size - 1)), dim=1)
    above = torch.where(best.values > floor, best.values, -torch.inf)
    equal = torch.where(lowest > 0, floor, -torch.inf)
    return ids, torch.cat((above, equal), dim=1)


def _most_likely(candidates: zip[tuple[int, float, float]], count: int) -> dict[int, Logprob]:
    """The best `count` of (id, logit, logprob); equal logits have equal ranks."""
    some = sorted((one for one in candidates if one[1] > -float("inf")), key=lambda one: (-one[1], one[0]))[:count]
    reported: dict[int, Logprob] = {}
    rank, previous = 1, None
    for place, (token, logit, logprob) in enumerate(some, start=1):
        rank = rank if logit == previous else place
        previous = logit
        reported[token] = Logprob(logprob, rank)
    return reported
