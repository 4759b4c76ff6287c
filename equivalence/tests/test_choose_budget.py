"""The verification budget of the core is the reference's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optimized._core import choose_budget
from reference import verification_lengths

pytestmark = pytest.mark.ci

CONFIDENCES = st.sampled_from([1.0, 1.0, 0.9, 0.75, 0.5, 0.5, 1e-3, 0.0])
"""Few values, so that many survivals are equal; products of the least are below what counts."""

ARGUMENTS: dict[str, NDArray] = {
    "survivals": np.ones((2, 2), np.float32),
    "most": np.full(2, 2, np.int32),
    "cost": np.ones(7),
}


def expected(survivals: NDArray[np.float32], most: NDArray[np.int32], cost: NDArray[np.float64]) -> int:
    """The reference's choice among the drafts that requests have."""
    rows = [row[:length] for row, length in zip(survivals.tolist(), most.tolist(), strict=True)]
    return verification_lengths.choose_budget(rows, lambda count: float(cost[count]), len(cost) - 1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data(), requests=st.integers(0, 6), slots=st.integers(0, 5))
def test_the_budget_is_the_references(data: st.DataObject, requests: int, slots: int) -> None:
    confidence = data.draw(st.one_of(st.just(CONFIDENCES), st.just(st.floats(0, 1, width=32))))
    values = data.draw(st.lists(confidence, min_size=requests * slots, max_size=requests * slots))
    survivals = np.cumprod(np.array(values, np.float32).reshape(requests, slots), axis=1, dtype=np.float32)
    most = np.array(data.draw(st.lists(st.integers(0, slots), min_size=requests, max_size=requests)), np.int32)
    rows = requests + data.draw(st.integers(0, requests * slots + 2))
    step = st.one_of(st.sampled_from([0.0, 0.0, 1.0, 8.0]), st.floats(0, 10))
    cost = 1.0 + np.cumsum(data.draw(st.lists(step, min_size=rows + 1, max_size=rows + 1)))
    assert choose_budget(survivals, most, cost) == expected(survivals, most, cost)


def test_of_equal_rates_the_least_budget_is_taken() -> None:
    sure, most = np.ones((2, 3), np.float32), np.full(2, 3, np.int32)
    assert choose_budget(sure, most, np.arange(9.0)) == 0  # (2 + k) / (2 + k)
    assert choose_budget(sure, most, np.array([0, 1, 1, 2, 2, 3, 3, 3, 3.5])) == 5  # 7 / 3, then 8 / 3.5


def test_a_dearer_step_may_pay_again() -> None:
    cost = np.array([0.0, 1.0, 4.0, 4.0, 4.0, 4.0])  # 1 / 1, 2 / 4, 3 / 4, 4 / 4, 5 / 4
    sure = np.ones((1, 4), np.float32)
    assert [choose_budget(sure, np.array([most], np.int32), cost) for most in range(5)] == [0, 0, 0, 0, 4]


def test_no_step_has_more_rows_than_cost_has() -> None:
    sure, most = np.ones((2, 3), np.float32), np.full(2, 3, np.int32)
    assert [choose_budget(sure, most, np.ones(rows + 1)) for rows in (2, 5, 8, 99)] == [0, 3, 6, 6]


def test_what_no_request_has_is_not_read() -> None:
    survivals = np.array([[0.5, np.nan], [7.0, np.inf]], np.float32)
    assert choose_budget(survivals, np.array([1, 0], np.int32), np.array([np.nan, 1, 1, 1])) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"survivals": np.ones(4, np.float32)}, "survivals: has 1 dimensions, must have 2"),
        ({"survivals": np.ones((3, 2), np.float32)}, "survivals: has 3 rows, must have 2 as most"),
        ({"survivals": np.array([[1, 1], [1, np.nan]], np.float32)}, r"survivals\[1\]=-?nan: must be in 0 .. 1"),
        ({"survivals": np.array([[1, 1], [1.5, 1]], np.float32)}, r"survivals\[1\]=1.5\d*: must be in 0 .. 1"),
        ({"survivals": np.array([[-0.5, 1], [1, 1]], np.float32)}, r"survivals\[0\]=-0.5"),
        ({"most": np.ones((2, 1), np.int32)}, "most: has 2 dimensions, must have 1"),
        ({"most": np.array([1, 3], np.int32)}, r"most\[1\]=3: must be in 0 .. 2"),
        ({"most": np.array([-1, 1], np.int32)}, r"most\[0\]=-1: must be in 0 .. 2"),
        ({"cost": np.ones(2)}, "cost: has 2 elements, must have one for 0 .. 2 rows at least"),
        ({"cost": np.ones(0)}, "cost: has 0 elements"),
        ({"cost": np.array([1, 1, 1, np.nan])}, r"cost\[3\]=-?nan: must be above 0 and finite"),
        ({"cost": np.array([1, 1, 0, 1.0])}, r"cost\[2\]=0.0*: must be above 0 and finite"),
        ({"cost": np.array([1, 1, 1, np.inf])}, r"cost\[3\]=inf: must be above 0 and finite"),
    ],
)
def test_a_bad_argument_is_refused_by_name(change: dict[str, NDArray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_budget(**(ARGUMENTS | change))


@pytest.mark.parametrize("name", ["survivals", "most", "cost"])
def test_another_dtype_is_never_copied(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        choose_budget(**(ARGUMENTS | {name: ARGUMENTS[name].astype(np.float16)}))
