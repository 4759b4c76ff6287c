"""Lengths of verified prefixes: the worked examples, optimality, ties, and that no choice of them shifts the law."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from reference import verification, verification_lengths
from reference.adjustments import Context
from reference.spec.errors import ConfigError
from reference.spec.sampling import SamplingParams
from reference.step_cost import StepCost
from reference.tests.enumeration import Branches, distance, law
from reference.tests.test_verification_laws import Rows, draft, rows

pytestmark = pytest.mark.ci

CONFIDENCES = [[0.9, 0.8, 0.7], [0.6, 0.5, 0.5], [0.95, 0.9, 0.85]]
SURVIVALS = [verification_lengths.survival(row) for row in CONFIDENCES]
Choose = Callable[[list[list[float]]], list[int]]


def rising(rows: int) -> float:
    """10 ms for up to four rows, then half a millisecond a row."""
    return 10 + 0.5 * max(0, rows - 4)


def stairs(rows: int) -> float:
    """10 ms for up to four rows, 13 for up to eight, 17 above."""
    return 10 if rows <= 4 else 13 if rows <= 8 else 17


def random_survivals(rng: np.random.Generator, requests: int, slots: int) -> list[list[float]]:
    """Confidences on a coarse grid, so that equal survivals are common."""
    grid = rng.choice([0.25, 0.5, 0.75, 1.0], size=(requests, slots))
    return [verification_lengths.survival(row) for row in grid.tolist()]


def test_worked_example_of_a_rising_cost() -> None:
    order = verification_lengths.candidates(SURVIVALS)
    assert [(r + 1, j + 1) for _, j, r in order] == [
        (3, 1), (1, 1), (3, 2), (3, 3), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3),
    ]  # fmt: skip
    rates = []
    for k in range(10):
        lengths = verification_lengths.split_budget(SURVIVALS, k)
        rates.append(verification_lengths.expected_tokens(SURVIVALS, lengths) / rising(3 + k))
    expected = [0.3, 0.395, 0.4619, 0.5186, 0.5593, 0.5960, 0.6201, 0.6351, 0.6338, 0.6218]
    assert rates == pytest.approx(expected, abs=5e-5)
    assert verification_lengths.choose_budget(SURVIVALS, rising) == 7
    assert verification_lengths.split_budget(SURVIVALS, 7) == [3, 1, 3]
    assert verification_lengths.choose_lengths_at_once(SURVIVALS, rising) == [3, 1, 3]


def test_worked_example_of_a_staircase() -> None:
    assert verification_lengths.choose_lengths_at_once(SURVIVALS, stairs) == [0, 0, 1]
    assert verification_lengths.choose_budget(SURVIVALS, stairs) == 5
    lengths = verification_lengths.split_budget(SURVIVALS, 5)
    assert verification_lengths.expected_tokens(SURVIVALS, lengths) / stairs(8) == pytest.approx(0.5501, abs=5e-5)


def test_a_flat_cost_verifies_everything_and_a_steep_one_nothing() -> None:
    assert verification_lengths.choose_budget(SURVIVALS, lambda rows: 1.0) == 9
    assert verification_lengths.choose_budget(SURVIVALS, lambda rows: float(rows**2)) == 0
    assert verification_lengths.choose_budget([], rising) == 0


def test_the_least_budget_wins_ties() -> None:
    assert verification_lengths.choose_budget([[1.0, 1.0]], lambda rows: float(rows)) == 0


def test_row_limit_and_hopeless_drafts_bound_the_budget() -> None:
    flat: Callable[[int], float] = lambda rows: 1.0  # noqa: E731
    assert verification_lengths.choose_budget(SURVIVALS, flat, max_rows=5) == 2
    assert verification_lengths.choose_budget(SURVIVALS, flat, max_rows=2) == 0
    assert verification_lengths.choose_budget([[0.5, 1e-7], [9e-7]], flat) == 1
    assert verification_lengths.split_budget([[0.5, 1e-7], [9e-7]], 3) == [1, 0]


def test_the_split_is_the_best_of_all_lengths(rng: np.random.Generator) -> None:
    for _ in range(60):
        survivals = random_survivals(rng, int(rng.integers(1, 4)), 3)
        for budget in range(3 * len(survivals) + 1):
            lengths = verification_lengths.split_budget(survivals, budget)
            every = [l for l in itertools.product(range(4), repeat=len(survivals)) if sum(l) == budget]  # noqa: E741
            best = max(verification_lengths.expected_tokens(survivals, one) for one in every)
            assert sum(lengths) == budget
            assert verification_lengths.expected_tokens(survivals, lengths) == pytest.approx(best, abs=1e-12)


def test_the_budget_is_the_best_of_all(rng: np.random.Generator) -> None:
    for _ in range(60):
        survivals = random_survivals(rng, int(rng.integers(1, 4)), 3)
        times = np.maximum.accumulate(rng.random(13)) + 0.1
        found = verification_lengths.choose_budget(survivals, times.tolist().__getitem__)
        rates = [
            verification_lengths.expected_tokens(survivals, verification_lengths.split_budget(survivals, k))
            / times[len(survivals) + k]
            for k in range(3 * len(survivals) + 1)
        ]
        assert rates[found] == pytest.approx(max(rates), rel=1e-12)


def test_permuted_requests_differ_by_the_tie_rule_alone(rng: np.random.Generator) -> None:
    for _ in range(60):
        survivals = random_survivals(rng, 3, 3)
        order = rng.permutation(3).tolist()
        for budget in range(10):
            lengths = verification_lengths.split_budget(survivals, budget)
            permuted = verification_lengths.split_budget([survivals[r] for r in order], budget)
            taken = sorted(a for r in range(3) for a in survivals[r][: lengths[r]])
            assert taken == sorted(a for i, r in enumerate(order) for a in survivals[r][: permuted[i]])
    equal = [[0.5, 0.5], [0.5, 0.5]]
    assert [verification_lengths.split_budget(equal, k) for k in range(5)] == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2]]


def test_temperatures_soften_and_survival_is_float32() -> None:
    assert verification_lengths.probabilities([0.0, 4.0, -2e4], [1.0, 2.0, 0.1]) == pytest.approx(
        [0.5, 1 / (1 + np.exp(-2)), 0.0], abs=1e-15
    )
    third = np.float32(1 / 3)
    assert verification_lengths.survival([1 / 3, 1 / 3]) == [float(third), float(third * third)]


def one_request(choose: Choose) -> dict[int, float]:
    """Law of the first token where two drafts stand, p = (.7, .3), q = (.5, .5), and the second's confidence is known
    by the first: .9 after token 0, none after token 1. choose: survivals -> lengths."""
    target = torch.log(torch.tensor([0.7, 0.3], dtype=torch.float64))
    params, context = SamplingParams(), Context()

    def program(source: Branches) -> int:
        proposal = draft(lambda here: torch.zeros(2), "ratio", 2, params, context, source)
        confidences = [0.8, 0.9 if proposal.tokens[0] == 0 else 0.0]
        (length,) = choose([verification_lengths.survival(confidences)])
        cut = verification.Proposal(proposal.tokens[:length], proposal.rows[:length])
        return verification.verify("ratio", target.expand(length + 1, 2), cut, params, context, source).tokens[0]

    return law(program)


def slow_step(rows: int) -> float:
    """Steps per second 1, .5, .45 for one, two and three rows."""
    return [1.0, 1 / 0.5, 1 / 0.45][rows - 1]


def test_lengths_that_peek_at_the_token_they_judge_shift_the_law() -> None:
    def peek(survivals: list[list[float]]) -> list[int]:
        return verification_lengths.split_budget(survivals, verification_lengths.choose_budget(survivals, slow_step))

    assert distance(one_request(peek), {0: 0.85, 1: 0.15}) < 1e-12


def test_taking_drafts_at_once_with_an_early_stop_keeps_the_law() -> None:
    found = one_request(lambda survivals: verification_lengths.choose_lengths_at_once(survivals, slow_step))
    assert distance(found, {0: 0.7, 1: 0.3}) < 1e-12


@pytest.mark.parametrize("budget", range(3))
def test_an_older_budget_keeps_the_law(budget: int) -> None:
    found = one_request(lambda survivals: verification_lengths.split_budget(survivals, budget))
    assert distance(found, {0: 0.7, 1: 0.3}) < 1e-12


def two_requests(p: Rows, q: Rows, choose: Choose) -> dict[tuple[tuple[int, ...], ...], float]:
    """Law of the first two tokens of two requests that are verified together, then each alone."""
    params = SamplingParams()
    contexts = [Context(prompt=[r]) for r in range(2)]

    def program(source: Branches) -> tuple[tuple[int, ...], ...]:
        proposals = [draft(q, "ratio", 2, params, context, source) for context in contexts]
        confidences = [[0.6 + 0.2 * r, 0.15 + 0.8 * one.tokens[0]] for r, one in enumerate(proposals)]
        lengths = choose([verification_lengths.survival(row) for row in confidences])
        texts = []
        for context, one, length in zip(contexts, proposals, lengths, strict=True):
            logits = torch.stack([p(context.after(one.tokens[:k])) for k in range(length + 1)])
            cut = verification.Proposal(one.tokens[:length], one.rows[:length])
            tokens = verification.verify("ratio", logits, cut, params, context, source).tokens
            if len(tokens) == 1:
                tokens.append(source.pick(torch.softmax(p(context.after(tokens)), -1).tolist()))
            texts.append(tuple(tokens[:2]))
        return tuple(texts)

    return law(program)


@pytest.mark.parametrize("budget", [*range(5), None])
def test_verified_together_two_requests_keep_their_laws(budget: int | None) -> None:
    p, q = rows("p", 2), rows("q", 2)
    expected: dict[tuple[tuple[int, ...], ...], float] = {}
    pairs = list(itertools.product(range(2), repeat=2))
    for texts in itertools.product(pairs, repeat=2):
        laws = [torch.softmax(p(Context(prompt=[r], output=list(text[:k]))), -1)[text[k]]
                for r, text in enumerate(texts) for k in range(2)]  # fmt: skip
        expected[texts] = float(torch.stack(laws).prod())
    if budget is None:
        found = two_requests(p, q, lambda survivals: verification_lengths.choose_lengths_at_once(survivals, rising))
    else:
        found = two_requests(p, q, lambda survivals: verification_lengths.split_budget(survivals, budget))
    assert distance(found, expected) < 1e-12


def test_step_cost_pads_up_then_interpolates_and_never_falls() -> None:
    cost = StepCost([(1, 10.0), (4, 9.0), (8, 13.0), (16, 17.0), (32, 33.0)], captured=8)
    assert [cost(rows) for rows in (1, 2, 4, 5, 8)] == [10, 10, 10, 13, 13]
    assert [cost(rows) for rows in (9, 16, 20, 32, 40)] == [17, 17, 21, 33, 41]
    alone = StepCost([(4, 2.0)])
    assert [alone(rows) for rows in (1, 4, 9)] == [2, 2, 2]
    free = StepCost([(2, 1.0), (4, 3.0)])
    assert [free(rows) for rows in (1, 2, 3, 4, 6)] == [1, 1, 2, 3, 5]


@pytest.mark.parametrize(
    ("points", "captured"),
    [([], 0), ([(0, 1.0)], 0), ([(2, 1.0), (2, 1.0)], 0), ([(1, 0.0)], 0), ([(1, float("nan"))], 0), ([(1, 1.0)], 2)],
)
def test_a_bad_step_cost_is_refused(points: list[tuple[int, float]], captured: int) -> None:
    with pytest.raises(ConfigError, match="step cost"):
        StepCost(points, captured)
