"""How many drafts of each request a step verifies, decided on the device from the confidences at hand.

Knows survivals and a budget; knows nothing about the cost of a step or where the budget comes from. Source: serving
specification §1.9 (b).
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

SURVIVALS = Operation("survivals")
SELECT_LENGTHS = Operation("select_lengths")


def survivals(confidence: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """Probability that drafts 1..k are all kept, for every k: running products of sigma(z / T), in slot order.

    Args:
        confidence: [R, n], raw logits z; NaN, which no healthy draft has, counts as -inf. temperatures: [n] or [R, n]
            float64, T of each slot.
    Returns:
        [R, n] float32; the sigmas are float64, rounded to float32 before they are multiplied.
    """
    fits = confidence.dim() == 2 and temperatures.shape in (confidence.shape, confidence.shape[1:])
    require(fits, "survivals", "confidence [R, n], temperatures [n] or [R, n]", confidence, temperatures)
    return SURVIVALS.on(confidence)(confidence, temperatures)


def select_lengths(survival: torch.Tensor, most: torch.Tensor, budget: int) -> torch.Tensor:
    """Splits a budget of drafts: taken by survival descending, then slot, then request ascending.

    Args:
        survival: [R, n] float32, never rising along the slots; below 1e-6 a draft is never taken.
        most: [R] int64, drafts that each request has, at most n.
    Returns:
        [R] int64, how many drafts of each request are taken; together at most `budget`.
    """
    fits = survival.dim() == 2 and most.shape == survival.shape[:1]
    require(fits, "select_lengths", "survival [R, n], most [R]", survival, most)
    return SELECT_LENGTHS.on(survival)(survival, most, budget)
