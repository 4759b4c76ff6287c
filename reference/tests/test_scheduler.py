"""The rules of the scheduler, one small scene each; long random worlds are in the check `scheduler`."""

from __future__ import annotations

import re

import pytest

from reference.scheduler import Scheduler
from reference.scheduling.pool import Admission
from reference.scheduling.step_plan import StepPlan

pytestmark = pytest.mark.ci

LIMITS = {
    "num_pages": 13,
    "page_size": 4,
    "num_slots": 5,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 8,
    "max_model_len": 40,
}


def make(**changes: object) -> Scheduler:
    """A scheduler of 12 pages of 4 tokens."""
    return Scheduler(**{**LIMITS, **changes})  # type: ignore[arg-type]


def step(scheduler: Scheduler) -> StepPlan:
    """Schedule and commit one step in which every sampled row gives one token."""
    plan = scheduler.schedule()
    if plan is None:
        raise RuntimeError("nothing to run")
    give(scheduler, plan)
    return plan


def give(scheduler: Scheduler, plan: StepPlan) -> list[int]:
    """Commit one token for each sampled row."""
    counts = [int(row >= 0) for row in plan.sample_rows]
    return scheduler.commit(plan.step_id, plan.request_ids, [7] * sum(counts), counts, [False] * len(counts))


def call_often(scheduler: Scheduler) -> None:
    """Ask for steps and give no result."""
    for _ in range(9):
        scheduler.schedule()


def test_prefill_comes_first_and_kinds_are_not_mixed() -> None:
    scheduler = make()
    scheduler.add(1, [5, 6, 7], 4)
    step(scheduler)
    scheduler.add(2, [8], 4)
    assert [(step(scheduler).kind, scheduler.num_running) for _ in range(2)] == [("prefill", 2), ("decode", 2)]


def test_a_long_prompt_is_chunked_on_the_grid_and_keeps_its_turn() -> None:
    scheduler = make(chunk_grid=3)
    scheduler.add(1, list(range(19)), 4)
    scheduler.add(2, [1], 4)
    plans = [step(scheduler) for _ in range(4)]
    assert [plan.kv_lens for plan in plans] == [[6], [12], [19, 1], [20, 2]]
    assert [plan.sample_rows for plan in plans] == [[-1], [-1], [6, 7], [0, 1]]
    assert [plan.fresh for plan in plans] == [[True], [False], [False, True], [False, False]]


def test_a_head_that_does_not_fit_is_not_overtaken() -> None:
    scheduler = make(max_num_batched_tokens=64)
    scheduler.add(1, [1] * 20, 4)
    scheduler.add(2, [1] * 28, 4)
    scheduler.add(3, [1], 4)
    assert step(scheduler).request_ids == [1]
    assert step(scheduler).kind == "decode"


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "reason"),
    [(60, 1, "leaves no room in max_model_len 60"), (20, 30, "needs 13 pages at its longest, and there are 12")],
)
def test_what_can_never_run_is_refused_with_numbers(prompt_len: int, max_tokens: int, reason: str) -> None:
    scheduler = make(max_model_len=60)
    assert scheduler.add(1, [1] * prompt_len, max_tokens) is Admission.NEVER
    assert reason in scheduler.explain_never(prompt_len, max_tokens)
    assert not scheduler.has_work()


def test_the_most_recently_admitted_request_is_preempted_and_comes_back_first() -> None:
    scheduler = make(num_pages=6, max_cache_usage=1.0)
    for key in (1, 2):
        scheduler.add(key, [key] * 6, 12)
    scheduler.add(3, [3], 2)
    while scheduler.num_preemptions == 0:
        step(scheduler)
    assert (scheduler.state(1), scheduler.state(2)) == ("running", "waiting")
    assert scheduler.request_ids() == [1, 2, 3]
    assert scheduler.tokens(2)[:6] == [2] * 6
    assert len(scheduler.tokens(2)) > 6


def test_an_aborted_request_leaves_a_zombie_and_its_pages_wait() -> None:
    scheduler = make(max_in_flight=2)
    scheduler.add(1, [1, 2], 9)
    scheduler.add(2, [3], 9)
    step(scheduler)
    first, second = scheduler.schedule(), scheduler.schedule()
    if first is None or second is None:
        raise RuntimeError("two steps must be in flight")
    assert (second.tokens, second.previous_rows) == ([-1, -1], [0, 1])
    scheduler.abort(1)
    assert (scheduler.num_deferred_pages, scheduler.num_deferred_slots) == (1, 1)
    assert give(scheduler, first) == [0, 1]
    assert scheduler.num_deferred_pages == 1
    assert give(scheduler, second) == [0, 1]
    assert scheduler.num_deferred_pages == 0
    scheduler.check_integrity()


def schedule(scheduler: Scheduler) -> StepPlan:
    """The next step, which must exist."""
    plan = scheduler.schedule()
    if plan is None:
        raise RuntimeError("nothing to run")
    return plan


def test_drafts_stay_within_the_limit() -> None:
    scheduler = make(nextn=3, max_num_batched_tokens=16)
    scheduler.add(1, [1, 2], 4)
    scheduler.commit(schedule(scheduler).step_id, [1], [9], [1], [False], [4, 5, 6], [3])
    plan = schedule(scheduler)
    assert (plan.tokens, plan.positions, plan.sample_rows) == ([9, 4, 5], [2, 3, 4], [0])


def test_in_flight_the_drafts_are_those_of_the_shortest_sequence() -> None:
    """Limit 8: the first step makes 4 to 7 tokens of 3, and 4 may have 3 drafts more; none beyond has a page."""
    scheduler = make(nextn=3, max_num_batched_tokens=16, max_in_flight=2)
    scheduler.add(1, [1, 2], 6)
    scheduler.commit(schedule(scheduler).step_id, [1], [9], [1], [False], [4, 5, 6], [3])
    first, second = schedule(scheduler), schedule(scheduler)
    assert (first.positions, second.positions) == ([2, 3, 4, 5], [6, 7, 8, 9])
    assert (second.tokens, second.kv_lens, second.page_table) == ([-1] * 4, [10], [[1, 2, 3]])
    assert scheduler.commit(first.step_id, [1], [4, 5, 8], [3], [False]) == [3]
    third = schedule(scheduler)
    assert (third.positions, third.page_table, scheduler.lifetime_pages(2, 6)) == ([9], [[1, 2, 3]], 3)
    with pytest.raises(ValueError, match=re.escape("counts[0] of request 1 is 3, allowed 1 .. 2")):
        scheduler.commit(second.step_id, [1], [7, 7, 7], [3], [False])
    assert scheduler.commit(second.step_id, [1], [7, 7], [2], [False]) == [2]
    assert scheduler.commit(third.step_id, [1], [7], [1], [False]) == [0]
    assert not scheduler.has_work()


@pytest.mark.parametrize("nextn", [0, 2])
def test_after_a_failed_step_everything_is_computed_again_but_not_sampled(nextn: int) -> None:
    scheduler = make(nextn=nextn, max_num_batched_tokens=12)
    scheduler.add(1, [1, 2, 3], 9)
    step(scheduler)
    scheduler.discard(schedule(scheduler).step_id)
    again = schedule(scheduler)
    assert (again.kind, again.tokens, again.fresh, again.sample_rows) == ("prefill", [1, 2, 3], [True], [-1])
    drafts = [5, 6][:nextn]
    assert scheduler.commit(again.step_id, [1], [], [0], [False], drafts, [nextn]) == [0]
    assert (scheduler.state(1), scheduler.num_computed(1)) == ("running", 3)
    plan = schedule(scheduler)
    assert (plan.kind, plan.tokens, plan.positions) == ("decode", [7, *drafts], list(range(3, 4 + nextn)))


def test_a_prompt_that_comes_back_is_chunked_and_followed_by_the_next() -> None:
    scheduler = make(chunk_grid=4)
    scheduler.add(1, list(range(9)), 9)
    scheduler.add(2, [5], 9)
    while scheduler.num_running < 2 or scheduler.state(2) != "running":
        step(scheduler)
    scheduler.discard(schedule(scheduler).step_id)
    plans = [step(scheduler) for _ in range(3)]
    assert [(plan.request_ids, plan.kv_lens, plan.sample_rows) for plan in plans] == [
        ([1], [8], [-1]),
        ([1, 2], [9, 1], [-1, -1]),
        ([1, 2], [10, 2], [0, 1]),
    ]


def test_a_request_ends_by_length_and_all_is_free() -> None:
    scheduler = make()
    scheduler.add(1, [1, 2, 3], 3)
    steps = 0
    while scheduler.has_work():
        step(scheduler)
        steps += 1
    assert (steps, scheduler.num_free_pages, scheduler.num_free_slots) == (3, 12, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.add(1, [1], 1), "request_id 1 is negative or in use"),
        (lambda s: s.add(2, [], 1), "at least one token"),
        (lambda s: s.add(2, [1], 0), "max_tokens must be at least 1, not 0"),
        (lambda s: s.add(2, [1], 1, 2), "replay_start must be in 0 .. 1, not 2"),
        (lambda s: s.pages(9), "request_id 9 is not live"),
        (lambda s: s.commit(4, [1], [1], [1], [False]), "step 4 is not the oldest of [1] in flight"),
        (lambda s: s.commit(1, [2], [1], [1], [False]), "request_ids [2] are not the plan's [1]"),
        (lambda s: s.commit(1, [1], [], [0], [False]), "is 0, allowed 1 .. 1"),
        (lambda s: s.commit(1, [1], [1, 2], [2], [False]), "is 2, allowed 1 .. 1"),
        (lambda s: s.commit(1, [1], [1], [1], [False], [1], [1]), "draft_counts [1] must be in 0 .. 0"),
    ],
)
def test_a_refusal_names_the_argument_and_changes_nothing(call: object, message: str) -> None:
    scheduler = make()
    scheduler.add(1, [1, 2], 5)
    scheduler.schedule()
    before = scheduler.dump()
    with pytest.raises(ValueError, match=re.escape(message)):
        call(scheduler)  # type: ignore[operator]
    assert scheduler.dump() == before


def test_too_many_calls_without_progress_are_a_stall_with_a_dump() -> None:
    scheduler = make(stall_limit=3, max_in_flight=9)
    scheduler.add(1, [1, 2], 5)
    step(scheduler)
    with pytest.raises(RuntimeError, match="stall") as caught:
        call_often(scheduler)
    assert "request 1: running, 3 of 7 tokens" in str(caught.value)
