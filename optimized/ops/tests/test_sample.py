"""The sampler: known answers of its generator, and its filters against their definition."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from optimized.ops.sample import (
    ACCEPT,
    DRAFT,
    RESIDUAL,
    TARGET,
    SamplingRows,
    draw,
    greatest,
    philox_words,
    process_logits,
)
from optimized.ops.tests.generators import normal

pytestmark = pytest.mark.ci

SEED = 0x0123456789ABCDEF


def rows(count: int, **given: list[float]) -> SamplingRows:
    """Parameters of `count` rows; what is not given is neutral."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "log_min_p": -math.inf}
    neutral |= {"top_k": 0, "seed": 0, "position": 0, "sample": 0, "role": TARGET}
    columns: dict[str, Any] = {
        name: torch.tensor(given.get(name, [value] * count), dtype=torch.float64 if index < 3 else torch.int64)
        for index, (name, value) in enumerate(neutral.items())
    }
    return SamplingRows(**columns)


def sample(logits: torch.Tensor, parameters: SamplingRows) -> torch.Tensor:
    return draw(process_logits(logits, parameters), parameters)


def one(value: int) -> torch.Tensor:
    return torch.tensor([value])


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (TARGET, "60d90047 2827dcf9 377ea6ee 0cca88a2 463f9bc8"),
        (DRAFT, "855a5df1 425715c3 12d22138 84949d54 e0cff381"),
        (ACCEPT, "3dc45f01"),
        (RESIDUAL, "7f6d5b08"),
    ],
)
def test_noise_is_the_published_one(role: int, words: str) -> None:
    expected = [int(word, 16) for word in words.split()]
    assert philox_words(one(SEED), one(7), one(0), one(role), len(expected)).tolist() == [expected]


def test_philox_known_answer_of_the_zero_counter() -> None:
    expected = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox_words(one(0), one(0), one(0), one(TARGET), 4).tolist() == [expected]


def test_zero_temperature_is_argmax_with_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [-math.inf, -5.0, -math.inf, -5.0]], dtype=torch.float64)
    assert sample(logits, rows(2, temperature=[0.0, 0.0])).tolist() == [1, 1]


def allowed(logits: list[float], temperature: float, k: int, p: float, min_p: float) -> set[int]:
    """Ids that pass all filters, by their definition."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    kept = order[:k] if 0 < k < len(order) else order
    mass = {token: math.exp((logits[token] - max(logits)) / temperature) for token in kept}
    total, before, nucleus = sum(mass.values()), 0.0, []
    for token in kept:
        if before < p or p >= 1:
            nucleus.append(token)
        before += mass[token] / total
    best = max(mass.values())
    return {token for token in nucleus if mass[token] >= min_p * best}


@pytest.mark.parametrize(
    ("temperature", "k", "p", "min_p"),
    [
        (1.0, 5, 1.0, 0.0),
        (0.7, 0, 0.6, 0.0),
        (1.0, 0, 1.0, 0.2),
        (1.5, 12, 0.8, 0.1),
        (1.0, 1, 1.0, 0.0),
        (1e-4, 0, 1.0, 0.0),
    ],
)
def test_draws_stay_inside_the_filters_and_reach_all_of_them(
    rng: np.random.Generator, temperature: float, k: int, p: float, min_p: float
) -> None:
    logits = normal(rng, 1, 20)
    count = 3000
    log_min_p = math.log(min_p) if min_p else -math.inf
    given = {"temperature": temperature, "top_k": k, "top_p": p, "log_min_p": log_min_p}
    parameters = rows(count, position=list(range(count)), **{name: [value] * count for name, value in given.items()})
    drawn = set(sample(logits.expand(count, -1), parameters).tolist())
    expected = allowed(logits[0].tolist(), temperature=temperature, k=k, p=p, min_p=min_p)
    assert drawn <= expected
    likely = torch.softmax(logits[0] / temperature, dim=0)
    assert {token for token in expected if likely[token] > 0.01} <= drawn


def test_frequencies_follow_the_probabilities(rng: np.random.Generator) -> None:
    logits, count = normal(rng, 1, 6), 20000
    drawn = sample(logits.expand(count, -1), rows(count, position=list(range(count))))
    expected = torch.softmax(logits[0], dim=0) * count
    found = torch.bincount(drawn, minlength=6)
    assert float(((found - expected) ** 2 / expected).sum()) < 25  # chi-square, 5 degrees of freedom: p < 2e-4


def test_masked_ids_are_never_drawn() -> None:
    logits = torch.full((500, 9), -torch.inf, dtype=torch.float64)
    logits[:, 4] = -3.0
    assert set(sample(logits, rows(500, position=list(range(500)))).tolist()) == {4}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_the_host_knows_changes_no_bit(rng: np.random.Generator, temperature: float) -> None:
    logits = normal(rng, 40, 30)
    unknown = rows(40, position=list(range(40)), temperature=[temperature] * 40, log_min_p=[-2.0] * 40)
    known = dataclasses.replace(unknown, some_drawn=temperature > 0, some_ranked=False)
    assert torch.equal(process_logits(logits, unknown), process_logits(logits, known))
    assert torch.equal(sample(logits, unknown), sample(logits, known))


def test_the_greatest_value_of_a_row_tells_whether_a_token_can_be_drawn() -> None:
    good = [0.0, -math.inf]
    logits = torch.tensor([good, [math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]], dtype=torch.float64)
    assert torch.isfinite(greatest(logits)).tolist() == [True, False, False, False]
