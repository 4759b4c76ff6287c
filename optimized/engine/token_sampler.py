"""Draws the next token of each sampled row, with the logprobs that its request asked for.

Knows which numbers of a sequence the sampling operation needs, and the raw logprobs and ranks; knows nothing about how
a token is drawn or what happens to it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from optimized.engine.sequence import Sequence
from optimized.ops.sample import SamplingRows, healthy, log_probabilities, sample
from reference.spec.outputs import Logprob


@dataclass(frozen=True)
class Drawn:
    """A drawn token, or why none could be drawn.

    logprob: raw, a float32 value; 0 unless the request asked for logprobs. logprobs: the token's own and the most
    likely ones, by (logit descending, id ascending). rank: 1 + number of strictly greater logits.
    """

    token: int
    logprob: float = 0.0
    logprobs: dict[int, Logprob] = field(default_factory=dict)
    error: str | None = None


def draw_tokens(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> list[Drawn]:
    """The next token of each sequence; a row from which nothing can be drawn gives an error to its own sequence only.

    Args:
        logits: [S, V] float64, as the model made them.
        sequences: S, in the order of the rows.
    """
    if not sequences:
        return []
    allowed = _without_banned(logits, sequences)  # [S, V]
    usable = healthy(logits) & healthy(allowed)  # [S]
    drawable = allowed if usable.all() else torch.where(usable[:, None], allowed, torch.zeros_like(allowed))  # [S, V]
    tokens = sample(drawable, _rows(sequences, logits.device))  # [S]
    drawn = [
        Drawn(token) if good else Drawn(token=-1, error=_complaint(logits[r]))
        for r, (token, good) in enumerate(zip(tokens.tolist(), usable.tolist(), strict=True))
    ]
    wanting = [
        r for r, one in enumerate(sequences) if one.request.params.logprobs is not None and drawn[r].error is None
    ]
    if wanting:
        counts = [sequences[r].request.params.logprobs or 0 for r in wanting]
        for r, one in zip(
            wanting, _with_logprobs([drawn[r].token for r in wanting], logits[wanting], counts), strict=True
        ):
            drawn[r] = one
    return drawn


def _without_banned(logits: torch.Tensor, sequences: SequenceOf[Sequence]) -> torch.Tensor:
    """[S, V] with -inf at the ids that a sequence may not draw now; the same tensor if there are none."""
    vocabulary = logits.shape[-1]
    pairs = [(r, token) for r, one in enumerate(sequences) for token in one.banned if token < vocabulary]
    if not pairs:
        return logits
    rows, tokens = torch.tensor(pairs, device=logits.device).unbind(dim=1)  # [B], [B]
    masked = logits.clone()  # [S, V]
    masked[rows, tokens] = -torch.inf
    return masked


def _rows(sequences: SequenceOf[Sequence], device: torch.device) -> SamplingRows:
    """The parameters of the sampling operation, one row a sequence."""
    params = [one.request.params for one in sequences]

    def numbers(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=device)  # [S]

    def integers(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)  # [S]

    return SamplingRows(
        temperature=numbers([one.temperature for one in params]),
        top_k=integers([one.top_k for one in params]),
        top_p=numbers([one.top_p for one in params]),
        min_p=numbers([one.min_p for one in params]),
        seed=integers([_signed(one.request.seed) for one in sequences]),
        position=integers([one.position for one in sequences]),
        sample=integers([one.sample_index for one in sequences]),
    )


def _signed(seed: int) -> int:
    """The signed integer with the bits of an unsigned 64-bit one."""
    return seed - 2**64 if seed >= 2**63 else seed


def _with_logprobs(tokens: list[int], logits: torch.Tensor, counts: list[int]) -> list[Drawn]:
    """Each row's token with its own logprob and those of its most likely tokens.

    Args:
        logits: [W, V] float64. counts: W, how many most likely tokens each row reports.
    """
    logprobs = log_probabilities(logits).float()  # [W, V]
    column = torch.tensor(tokens, device=logits.device)[:, None]  # [W, 1]
    own = logprobs.gather(1, column).squeeze(1).tolist()
    ranks = (1 + (logits > logits.gather(1, column)).sum(dim=1)).tolist()
    best = _most_likely(logits, logprobs, counts)
    return [
        Drawn(token, logprob, {token: Logprob(logprob, rank), **reported})
        for token, logprob, rank, reported in zip(tokens, own, ranks, best, strict=True)
    ]


def _most_likely(logits: torch.Tensor, logprobs: torch.Tensor, counts: list[int]) -> list[dict[int, Logprob]]:
    """The first counts[w] ids of each row [W, V] by (logit descending, id ascending), with logprob and rank."""
    most = min(max(counts), logits.shape[1])
    if not most:
        return [{} for _ in counts]
    floor = torch.topk(logits, most, dim=1).values[:, -1:]  # [W, 1]
    rows, ids = (logits >= floor).nonzero(as_tuple=True)  # [C], [C]; more than `most` a row if some are equal
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


def _complaint(logits: torch.Tensor) -> str:
    """Why nothing can be drawn from a row [V]."""
    nans, infinite = int(torch.isnan(logits).sum()), int(torch.isposinf(logits).sum())
    if nans or infinite:
        return f"the logits hold {nans} NaN and {infinite} +inf among {logits.numel()} values"
    return "every token is masked: no logit is above -inf"
