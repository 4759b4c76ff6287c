"""What is reported about tokens: logprobs, ranks, the most likely ones. Knows one row; draws nothing.

The row is the model's own logits (`raw_logprobs`, the default) or what the token was drawn from, after bias, penalties,
masks, temperature and filters (`processed_logprobs`; for a greedy request after the masks). A token at −inf is not
among the most likely ones, so that a filtered row reports those that could be drawn. Source: serving specification
§5.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from reference import sampler
from reference.spec.outputs import Logprob


def report(row: Tensor, token: int, count: int) -> dict[int, Logprob]:
    """A token's entry first, then those of the `count` most likely tokens, by (row value descending, id ascending).

    Args:
        row: [V], what the logprobs are the log-softmax of.
    """
    logprobs = sampler.raw_logprobs(row)  # [V]
    best = [t for t in sampler.top_tokens(row, count) if row[t] > -float("inf")]
    return {t: Logprob(float(logprobs[t]), sampler.rank(row, t)) for t in (token, *best)}


def of_prompt(logits: Tensor, prompt: Sequence[int], count: int) -> list[dict[int, Logprob] | None]:
    """Entries of every prompt token; None for the first, which nothing predicts.

    Args:
        logits: [T, V], the model's over the prompt: row i predicts token i + 1.
    """
    following = [report(logits[i], token, count) for i, token in enumerate(prompt[1:])]
    return [None, *following]
