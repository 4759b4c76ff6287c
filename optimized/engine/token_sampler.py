"""Draws the next token of each sampled row, with the logprobs that its request asked for.

Knows which numbers of a sequence the sampling operations need; knows nothing about how a token is drawn or what happens
to it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import torch

from optimized.engine.adjustments import gather_adjustments
from optimized.engine.logprob_report import report
from optimized.engine.sequence import Sequence
from optimized.ops.adjust_logits import adjust_logits
from optimized.ops.sample import SamplingRows, healthy, process_logits, sample
from reference.spec.outputs import Logprob
from reference.spec.sampling import LogprobsMode


@dataclass(frozen=True)
class Drawn:
    """A drawn token, or why none could be drawn.

    logprob: a float32 value; 0 unless the request asked for logprobs. logprobs: the token's own and the most likely
    ones, by (logit descending, id ascending), each with the rank 1 + number of strictly greater logits.
    """

    token: int
    logprob: float = 0.0
    logprobs: dict[int, Logprob] = field(default_factory=dict)
    error: str | None = None


def draw_tokens(
    logits: torch.Tensor,
    sequences: SequenceOf[Sequence],
    *,
    allowed: torch.Tensor | None = None,
    logprobs_mode: LogprobsMode = "raw_logprobs",
) -> list[Drawn]:
    """The next token of each sequence; a row from which nothing can be drawn gives an error to its own sequence only.

    Args:
        logits: [S, V] float64, as the model made them.
        sequences: S, in the order of the rows.
        allowed: [S, V] bool, what the sequences' grammars allow; None: everything.
        logprobs_mode: whether logprobs are told from the model's logits or from what the token was drawn from.
    """
    if not sequences:
        return []
    adjustments = gather_adjustments(sequences, logits.shape[1], logits.device, allowed)
    adjusted = logits if adjustments is None else adjust_logits(logits, adjustments)  # [S, V]
    usable = healthy(logits) & healthy(adjusted)  # [S]
    drawable = adjusted if usable.all() else torch.where(usable[:, None], adjusted, torch.zeros_like(adjusted))
    rows = _rows(sequences, logits.device)
    tokens = sample(drawable, rows)  # [S]
    drawn = [
        Drawn(token) if good else Drawn(token=-1, error=_complaint(logits[r], adjusted[r], sequences[r]))
        for r, (token, good) in enumerate(zip(tokens.tolist(), usable.tolist(), strict=True))
    ]
    wanting = [
        r for r, one in enumerate(sequences) if one.request.params.logprobs is not None and drawn[r].error is None
    ]
    if wanting:
        told_from = logits if logprobs_mode == "raw_logprobs" else process_logits(drawable, rows)  # [S, V]
        chosen = [drawn[r].token for r in wanting]
        counts = [sequences[r].request.params.logprobs or 0 for r in wanting]
        for r, token, entries in zip(wanting, chosen, report(chosen, told_from[wanting], counts), strict=True):
            drawn[r] = Drawn(token, entries[token].logprob, entries)
    return drawn


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


def _complaint(logits: torch.Tensor, adjusted: torch.Tensor, sequence: Sequence) -> str:
    """Why nothing can be drawn from a row [V], before or after what its request changes."""
    for row, what in ((logits, "the logits hold"), (adjusted, "with bias and penalties the logits hold")):
        nans, infinite = int(torch.isnan(row).sum()), int(torch.isposinf(row).sum())
        if nans or infinite:
            return f"{what} {nans} NaN and {infinite} +inf among {row.numel()} values"
    if sequence.matcher is not None:
        return "a dead end: its grammar allows no token that the model and min_tokens allow too"
    return "every token is masked: no logit is above -inf"
