"""A pool never hands out number 0, never hands one out twice, and holds numbers back behind a fence."""

import pytest

from reference.scheduling.pool import Admission, Pool

pytestmark = pytest.mark.ci


@pytest.mark.parametrize(
    ("count", "verdict"), [(0, Admission.OK), (5, Admission.OK), (6, Admission.LATER), (8, Admission.NEVER)]
)
def test_a_demand_fits_now_or_later_or_never(count: int, verdict: Admission) -> None:
    pool = Pool("pages", 8)
    pool.take(2)
    assert pool.verdict(count) is verdict


def test_all_but_number_0_are_handed_out_once() -> None:
    assert sorted(Pool("pages", 8).take(7)) == [1, 2, 3, 4, 5, 6, 7]


def test_a_number_behind_a_fence_waits_for_its_step() -> None:
    pool = Pool("slots", 4)
    pool.give_back(pool.take(2), fence=5)
    pool.settle(4)
    assert (len(pool.free), pool.pending) == (1, 2)
    pool.settle(5)
    assert (len(pool.free), pool.pending) == (3, 0)


def test_more_than_is_free_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="pages: 4 asked for, 3 free"):
        Pool("pages", 4).take(4)


@pytest.mark.parametrize(("owned", "message"), [([1], "more than once or outside: \\[1\\]"), ([], "lost: \\[1\\]")])
def test_conservation_names_what_is_lost_or_doubled(owned: list[int], message: str) -> None:
    pool = Pool("pages", 4)
    taken = pool.take(1)
    pool.check_conservation(taken)
    with pytest.raises(RuntimeError, match=message):
        pool.check_conservation(owned + owned)
