"""How data-parallel ranks agree on the kind of a step: the votes, their intervals, and what ends a wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from optimized._core import Scheduler
from optimized.engine.tests.scheduler_group import Group
from optimized.engine.tests.scheduler_world import World, lone_run

pytestmark = pytest.mark.ci

INTERVALS = {"prefill_all_interval": 7, "prefill_any_interval": 10, "num_pages": 200, "max_model_len": 600}


@pytest.fixture
def pair() -> Iterator[Group]:
    """Two ranks with intervals 7 (all) and 10 (any), and memory for everything."""
    group = Group(2, **INTERVALS)
    yield group
    group.close()


def decodes_until_prefill(group: Group, most: int = 200) -> int:
    """Steps up to the next prefill, which is not counted."""
    for count in range(most):
        plan = group.step()[0]
        assert plan is not None
        if plan.kind == "prefill":
            return count
    raise AssertionError("no prefill")


def test_the_first_prompt_starts_at_once_when_nothing_runs_anywhere(pair: Group) -> None:
    pair.worlds[1].add(0, [1, 2, 3], 4)
    idle, busy = pair.step()
    assert idle is not None and busy is not None
    assert (idle.kind, idle.num_requests, busy.num_requests) == ("prefill", 0, 1)
    assert idle.query_start.tolist() == [0]
    assert idle.page_table.shape == (0, 1)
    pair.run()
    assert pair.kinds == ["prefill", "decode", "decode", "decode"]


def test_a_prompt_of_one_rank_waits_for_the_any_vote(pair: Group) -> None:
    pair.worlds[0].add(0, [1, 2, 3], 100)
    pair.step()
    pair.step()
    pair.worlds[1].add(0, [4], 2)
    assert decodes_until_prefill(pair) == 9


def test_prompts_of_all_ranks_start_at_the_all_vote(pair: Group) -> None:
    pair.worlds[0].add(0, [1, 2, 3], 100)
    pair.step()
    pair.step()
    for world in pair.worlds:
        world.add(1, [4], 2)
    assert decodes_until_prefill(pair) == 6


def test_right_after_a_prefill_all_ranks_may_go_on_but_one_may_not(pair: Group) -> None:
    for world in pair.worlds:
        for request_id in range(2):
            world.add(request_id, [5] * 16, 100)  # a whole budget each
    pair.worlds[0].add(2, [6], 2)
    assert [decodes_until_prefill(pair) for _ in range(3)] == [0, 0, 10]


def test_the_any_rule_wins_where_both_intervals_meet() -> None:
    group = Group(2, **(INTERVALS | {"prefill_all_interval": 5, "prefill_any_interval": 5}))
    group.worlds[0].add(0, [1, 2, 3], 100)
    group.step()
    group.step()
    group.worlds[1].add(0, [4], 2)
    assert decodes_until_prefill(group) == 4
    group.close()


def test_wanting_is_not_getting_and_the_second_vote_spares_an_empty_step() -> None:
    group = Group(2, prefill_all_interval=3, prefill_any_interval=5, max_num_seqs=1)
    for world in group.worlds:
        world.add(0, [1, 2, 3], 12)
        world.add(1, [1, 2, 3], 12)
    group.run()
    assert group.kinds == ["prefill", *["decode"] * 11] * 2
    assert group.votes[0].count(1) > 2
    group.close()


def test_an_unfinished_prompt_goes_on_and_others_decode_in_between() -> None:
    group = Group(2, **INTERVALS, max_consecutive_prefills=2)
    group.worlds[0].add(0, [1], 100)
    group.step()
    group.worlds[1].add(0, [2] * 80, 4)
    while group.kinds[-1] == "decode" or len(group.kinds) == 1:
        group.step()
    for _ in range(6):
        group.step()
    assert "".join(kind[0] for kind in group.kinds[-7:]) == "ppdppdp"
    group.close()


def test_a_head_that_waited_long_enough_needs_no_vote_and_no_spare_pages() -> None:
    group = Group(
        2, num_pages=13, max_cache_usage=0.5, prefill_all_interval=70, prefill_any_interval=100, max_wait_steps=6
    )
    group.worlds[0].add(0, [1] * 30, 10)  # more than half of the pages
    group.worlds[0].add(1, [1] * 10, 4)
    group.step()
    group.step()
    assert group.worlds[0].scheduler.state(1) == "waiting"
    assert decodes_until_prefill(group) == 6
    assert group.worlds[0].scheduler.state(1) == "running"
    group.run()
    group.close()


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_any_load_gives_lone_runs_and_one_sequence_of_votes(rng: np.random.Generator, max_in_flight: int) -> None:
    group = Group(
        3,
        num_pages=16,
        nextn=2,
        max_num_batched_tokens=24,
        max_in_flight=max_in_flight,
        prefill_all_interval=3,
        prefill_any_interval=5,
        max_cache_usage=1.0,
    )
    aborted: set[tuple[int, int]] = set()
    for turn in range(120):
        rank = int(rng.integers(0, 3))
        if turn < 60:
            prompt = rng.integers(0, 1000, size=int(rng.integers(1, 20))).tolist()
            group.worlds[rank].add(turn, prompt, 9)
        live = group.worlds[rank].scheduler.request_ids().tolist()
        if live and rng.random() < 0.1:
            victim = int(rng.choice(live))
            group.worlds[rank].scheduler.abort(victim)
            aborted.add((rank, victim))
        group.turn()
    group.run()
    for rank, world in enumerate(group.worlds):
        for request_id, prompt in world.prompts.items():
            output, whole = world.outputs[request_id], lone_run(prompt, 9)
            assert output == whole or ((rank, request_id) in aborted and output == whole[: len(output)])
    assert sum(world.scheduler.num_preemptions for world in group.worlds) > 0
    group.close()


@pytest.mark.parametrize(
    "answer, error, text",
    [
        (lambda values: values[:2], ValueError, "reduce: returned 2 elements, was given 6"),
        (lambda values: values.astype(np.int32), TypeError, "int64"),
        (lambda values: None, TypeError, "int64"),
        (lambda values: values.reshape(2, 3), ValueError, "dimensions"),
        (lambda values: 1 // 0, ZeroDivisionError, "zero"),
    ],
)
def test_a_failing_reduction_raises_and_changes_nothing(answer: object, error: type[Exception], text: str) -> None:
    answers = [answer, lambda values: values]
    scheduler = Scheduler(9, 4, 5, 4, 16, 64, reduce=lambda values: answers[0](values))  # type: ignore[operator]
    scheduler.add(0, np.array([1, 2, 3]), 4)
    before = scheduler.dump()
    with pytest.raises(error, match=text):
        scheduler.schedule()
    assert scheduler.dump() == before
    del answers[0]
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.kind == "prefill"


def test_a_reduction_that_calls_its_scheduler_is_refused() -> None:
    schedulers: list[Scheduler] = []

    def reduce(values: np.ndarray) -> np.ndarray:
        schedulers[0].abort(0)
        return values

    schedulers.append(Scheduler(9, 4, 5, 4, 16, 64, reduce=reduce))
    with pytest.raises(RuntimeError, match="must not call the scheduler"):
        schedulers[0].schedule()
    with pytest.raises(TypeError, match="reduce: must be callable"):
        Scheduler(9, 4, 5, 4, 16, 64, reduce=3)  # type: ignore[arg-type]


def test_no_progress_with_work_waiting_is_an_error_that_names_request_and_resource() -> None:
    never = np.array([0, 1, 0, 0, 1, 1])  # the others always decode and never want a prefill
    scheduler = Scheduler(
        9, 4, 5, 4, 16, 64, stall_limit=30, prefill_any_interval=20, reduce=lambda values: never[: len(values)].copy()
    )
    scheduler.add(8, np.array([1, 2, 3]), 4)
    empty = np.zeros(0, np.int64)
    for _ in range(30):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(plan.step_id, plan.request_ids, empty, empty.astype(np.int32), empty.astype(np.bool_))
    with pytest.raises(RuntimeError, match="no progress in 30 calls; request 8 lacks nothing but its turn") as caught:
        scheduler.schedule()
    assert "head of the queue: request 8" in str(caught.value)


def test_the_dump_says_what_the_head_of_the_queue_lacks() -> None:
    def lack(**options: int) -> str:
        world = World.make(**options)
        world.add(0, [1] * 12, 8)
        world.add(1, [1] * 12, 8)
        world.step()
        return next(line for line in world.scheduler.dump().splitlines() if line.startswith("head of"))

    assert lack(max_num_seqs=1).endswith("request 1 lacks a place: all 1 sequences are taken")
    assert lack(num_slots=2).endswith("request 1 lacks a state slot: all 1 are taken")
    assert "request 1 lacks 4 pages, 3 are free, 1 of them kept" in lack(num_pages=8, max_num_batched_tokens=64)
