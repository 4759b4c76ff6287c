"""Engine options that decide how texts are speculated, scheduled and stored, none of which may change a coupled text.

Knows the names of options and page arithmetic; knows no model's weights and compares nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from equivalence.generators import circumstances
from equivalence.generators.batches import Request
from equivalence.generators.probes import Model

NEXTN = (0, 1, 3, 5)

PAGE_SIZE = 12
"""Holds whole groups of every ratio."""


def draw_options(rng: random.Random, nextn: int) -> dict[str, Any]:
    """Options for a number of drafts: rule, lengths, lag and poison."""
    drawn: dict[str, Any] = {"nextn": nextn, **circumstances.lag_and_poison(rng)}
    if nextn:
        drawn["verification_lengths"] = rng.choice(("fixed", "scheduled"))
    return drawn


def draw_costs(rng: random.Random) -> list[list[float]]:
    """(rows, duration) of steps: flat, so that all drafts are verified, rising as they are, or with a jump."""
    slope = rng.choice((0.0, 0.05, 0.3, 1.0))
    jump = rng.choice((1, 4, 12))
    return [[rows, 1.0 + slope * rows + (rng.choice((0.5, 3.0)) if rows > jump else 0.0)] for rows in (1, 2, 4, 8, 16)]


def wide(count: int) -> dict[str, Any]:
    """Room for all requests at once, prompts in one piece."""
    return {"max_num_seqs": count, "max_num_batched_tokens": circumstances.WIDE, "page_size": PAGE_SIZE}


def roomy(rng: random.Random, count: int) -> dict[str, Any]:
    """Room for all or some of the requests at once, prompts in one piece."""
    return {**wide(count), "max_num_seqs": rng.choice((count, count, count, min(count, 3)))}


def chunked(rng: random.Random, count: int) -> dict[str, Any]:
    """Prompts in chunks of a few rows, some requests waiting for others."""
    return {
        "max_num_seqs": min(3, count),
        "max_num_batched_tokens": rng.choice((18, 24, 31)),
        "page_size": rng.choice((PAGE_SIZE, 2 * PAGE_SIZE)),
    }


def scarce(rng: random.Random, model: Model, requests: Sequence[Request], nextn: int) -> dict[str, Any]:
    """Small pages, enough for the longest request and few more, so that some requests are preempted."""
    size = math.lcm(*model.ratios)
    size *= -(-(nextn + 1) // size)
    longest = max(len(one["prompt"]) + one["params"]["max_tokens"] for one in requests)
    return {
        "max_num_seqs": 8,
        "max_num_batched_tokens": rng.choice((48, circumstances.WIDE)),
        "page_size": size,
        "num_pages": 1 + -(-(longest + nextn + 1) // size) + rng.choice((0, 0, 1)),
    }
