"""Survivals and splits of a budget, bit for bit those of the reference: ties, orders of requests, shorter blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimized.ops.verification_lengths import select_lengths, survivals
from reference import verification_lengths

pytestmark = pytest.mark.ci

EDGES = [1e-6, float(np.float32(1e-6)), float(np.nextafter(np.float32(1e-6), np.float32(1))), 0.0, 1.0]


def cut(survival: np.ndarray, most: list[int]) -> list[list[float]]:
    """One list a request, as the reference takes them."""
    return [row[:count] for row, count in zip(survival.tolist(), most, strict=True)]


@st.composite
def splits(draw: st.DrawFn) -> tuple[np.ndarray, list[int], int]:
    """Survivals [R, n] that never rise, with many ties and edges; drafts of each request; a budget."""
    requests, slots = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    value = st.sampled_from([0.25, 0.5, 0.75, *EDGES]) | st.floats(0, 1, width=32)
    rows = [sorted(draw(st.lists(value, min_size=slots, max_size=slots)), reverse=True) for _ in range(requests)]
    most = draw(st.lists(st.integers(0, slots), min_size=requests, max_size=requests))
    return np.array(rows, dtype=np.float32).reshape(requests, slots), most, draw(st.integers(0, requests * slots + 2))


@given(splits())
@settings(max_examples=400, deadline=None)
def test_a_budget_is_split_like_the_reference_splits_it(case: tuple[np.ndarray, list[int], int]) -> None:
    survival, most, budget = case
    lengths = select_lengths(torch.from_numpy(survival), torch.tensor(most, dtype=torch.int64), budget).tolist()
    assert lengths == verification_lengths.split_budget(cut(survival, most), budget)
    assert sum(lengths) <= budget and all(length <= count for length, count in zip(lengths, most, strict=True))


def test_requests_in_another_order_get_the_same_lengths_where_nothing_ties(rng: np.random.Generator) -> None:
    for _ in range(50):
        values = rng.permutation(np.linspace(0.01, 1, 40)).reshape(8, 5)
        survival = torch.from_numpy(-np.sort(-values, axis=1)).float()
        most, order = torch.from_numpy(rng.integers(0, 6, 8)), torch.from_numpy(rng.permutation(8))
        budget = int(rng.integers(0, 30))
        lengths = select_lengths(survival, most, budget)
        assert torch.equal(select_lengths(survival[order], most[order], budget), lengths[order])


def test_a_confidence_that_is_no_number_is_never_verified() -> None:
    survival = torch.tensor([[0.9, float("nan")], [float("nan")] * 2, [0.5, 0.4]])
    assert select_lengths(survival, torch.tensor([2, 2, 2]), 9).tolist() == [1, 0, 2]


def test_survivals_are_those_of_the_reference(rng: np.random.Generator) -> None:
    inf, nan = np.inf, np.nan
    extremes = np.array(
        [[800.0, -800, 0, 1e300, -1e300], [-690, -710, 40, -40, 0], [inf, 3, nan, inf, 0], [-inf, nan, 0, 0, 0]]
    )
    confidence = np.concatenate((rng.normal(0, 4, (3000, 5)), extremes))
    temperatures = rng.uniform(0.1, 10, 5)
    expected = [
        verification_lengths.survival(verification_lengths.probabilities(row, temperatures.tolist()))
        for row in confidence.tolist()
    ]
    found = survivals(torch.from_numpy(confidence), torch.from_numpy(temperatures))
    assert found.dtype == torch.float32
    assert found.tolist() == expected
    assert not np.isnan(expected).any()
