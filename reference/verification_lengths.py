"""How many drafts of each request a step verifies: expected lengths, the step's budget, and its split over requests.

Knows confidences and the cost of a step; knows nothing about tokens, rules or devices.

The decision is split so that no token can influence whether it is verified itself (which would bias the output): the
budget K comes from the confidences of two steps ago, the split from those of the drafts at hand, of which the one of a
slot reads the tokens before it only. Survival never rises along the slots and ties go to the earlier slot, so what is
chosen is a prefix of every block. Source: serving specification §1.8-§1.10; DSpark (DeepSpec), §3.2, §5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

#: Candidates less likely to survive than this are never verified.
LEAST_SURVIVAL = 1e-6

Cost = Callable[[int], float]
"""Rows of the target in a step -> duration, in any unit, above 0."""


def probabilities(logits: Sequence[float], temperatures: Sequence[float]) -> list[float]:
    """Calibrated confidences of one block, σ(z_k / T_k) in float64; NaN, which no healthy draft has, counts as -inf."""
    scaled = [z / t for z, t in zip(logits, temperatures, strict=True)]
    return [1.0 / (1.0 + math.exp(-(z if z > -700.0 else -700.0))) for z in scaled]


def survival(confidences: Sequence[float]) -> list[float]:
    """Probability that drafts 1..k are all kept, for every k: running products in float32, in slot order."""
    return np.cumprod(np.asarray(confidences, dtype=np.float32), dtype=np.float32).tolist()


def expected_tokens(survivals: Sequence[Sequence[float]], lengths: Sequence[int]) -> float:
    """Tokens that a step commits on average, over its requests: Σ (1 + Σ_{j ≤ ℓ} a_j)."""
    return sum(1.0 + math.fsum(a[:length]) for a, length in zip(survivals, lengths, strict=True))


def candidates(survivals: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """(survival, slot, request) of every draft, in the order in which drafts are taken.

    By survival descending, then slot, then request ascending.
    """
    every = [(a, j, r) for r, row in enumerate(survivals) for j, a in enumerate(row) if a >= LEAST_SURVIVAL]
    return sorted(every, key=lambda one: (-one[0], one[1], one[2]))


def choose_budget(survivals: Sequence[Sequence[float]], cost: Cost, max_rows: int | None = None) -> int:
    """K, the number of drafts that a step verifies: the greatest expected tokens per time, the least K on ties.

    Args:
        survivals: one list a request, of an *earlier* step; what is known of no draft at hand.
        max_rows: the most rows of a step; every request takes one besides its drafts.
    """
    requests = len(survivals)
    ordered = candidates(survivals)
    most = len(ordered) if max_rows is None else min(len(ordered), max_rows - requests)
    best, best_rate, tokens = 0, 0.0, float(requests)
    for k in range(max(0, most) + 1):
        tokens += ordered[k - 1][0] if k else 0.0
        rate = tokens / cost(requests + k)
        if rate > best_rate:
            best, best_rate = k, rate
    return best


def split_budget(survivals: Sequence[Sequence[float]], budget: int) -> list[int]:
    """ℓ of each request: the first K candidates of the drafts at hand. A request of fewer drafts has a shorter list."""
    lengths = [0] * len(survivals)
    for _, _, request in candidates(survivals)[:budget]:
        lengths[request] += 1
    return lengths


def choose_lengths_at_once(survivals: Sequence[Sequence[float]], cost: Cost) -> list[int]:
    """ℓ of each request from the confidences at hand alone: drafts are taken while each raises the rate.

    Stopping at the first that does not is what keeps it exact: a later confidence never decides about an earlier draft.
    """
    lengths = [0] * len(survivals)
    rows, tokens = len(survivals), float(len(survivals))
    rate = tokens / cost(rows) if rows else 0.0
    for a, _, request in candidates(survivals):
        rows, tokens = rows + 1, tokens + a
        if tokens / cost(rows) <= rate:
            break
        rate = tokens / cost(rows)
        lengths[request] += 1
    return lengths
