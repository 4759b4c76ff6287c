"""The laws of the scheduler core, one test each. The world's model makes a wrong token of a misplaced page or state."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from optimized._core import Admission, Scheduler, StepPlan
from optimized.engine.tests.scheduler_world import World, lone_run, next_token

pytestmark = pytest.mark.ci

OPTIONS: dict[str, Any] = {
    "num_pages": 9,
    "page_size": 4,
    "num_slots": 5,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
}


def prompts_of(rng: np.random.Generator, lengths: list[int]) -> list[list[int]]:
    return [rng.integers(0, 1000, size=length).tolist() for length in lengths]


def add_all(world: World, prompts: list[list[int]], max_tokens: int) -> None:
    for request_id, prompt in enumerate(prompts):
        assert world.add(request_id, prompt, max_tokens) is Admission.OK


def expect_lone_runs(world: World, max_tokens: int) -> None:
    assert world.outputs == {i: lone_run(prompt, max_tokens) for i, prompt in world.prompts.items()}


@pytest.mark.parametrize(
    "name, value, law",
    [
        ("num_pages", 1, "2 .."),
        ("num_pages", 2**40, "2 .."),
        ("page_size", 0, "1 .."),
        ("num_slots", 1, "2 .."),
        ("max_num_seqs", 0, "1 .."),
        ("max_num_batched_tokens", 3, "max_num_seqs"),
        ("max_model_len", 1, "2 .."),
        ("nextn", -1, "0 .."),
        ("chunk_grid", 0, "1 .."),
        ("chunk_grid", 17, "chunk_grid = 17"),
        ("max_consecutive_prefills", 0, "1 .."),
        ("max_cache_usage", float("nan"), "above 0"),
        ("max_cache_usage", 1.5, "at most 1"),
        ("max_in_flight", 3, "1 .. 2"),
    ],
)
def test_a_bad_option_is_refused_with_name_and_law(name: str, value: float, law: str) -> None:
    with pytest.raises(ValueError, match=law):
        Scheduler(**(OPTIONS | {name: value}))


def test_drafts_need_pages_and_rows() -> None:
    with pytest.raises(ValueError, match="page_size=4: must be in 6"):
        Scheduler(**OPTIONS, nextn=5)
    with pytest.raises(ValueError, match=r"max_num_seqs \* \(nextn \+ 1\) = 20"):
        Scheduler(**(OPTIONS | {"page_size": 8}), nextn=4)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ((-1, np.zeros(3, np.int64), 1), ValueError, "request_id=-1"),
        ((7, np.zeros(3, np.int64), 1), ValueError, "request_id=7: a live request"),
        ((1, np.zeros(0, np.int64), 1), ValueError, "prompt_len=0"),
        ((1, np.array([4, -3]), 1), ValueError, "prompt=-3"),
        ((1, np.zeros((1, 3), np.int64), 1), ValueError, "prompt: has 2 dimensions"),
        ((1, np.zeros(3, np.int64), 0), ValueError, "max_tokens=0"),
        ((1, np.zeros(3, np.int64), 1, 4), ValueError, "replay_start=4"),
        ((1, np.zeros(3, np.int32), 1), TypeError, "prompt"),
        ((1, np.zeros(6, np.int64)[::2], 1), TypeError, "prompt"),
        ((1, [1, 2, 3], 1), TypeError, "prompt"),
        ((1, np.zeros(17, np.uint8)[1:].view(np.int64), 1), ValueError, "prompt: is not aligned"),
        ((2**64, np.zeros(3, np.int64), 1), TypeError, "request_id"),
    ],
)
def test_a_bad_request_is_refused_and_changes_nothing(arguments: tuple, error: type[Exception], text: str) -> None:
    scheduler = Scheduler(**OPTIONS)
    scheduler.add(7, np.zeros(3, np.int64), 1)
    before = scheduler.dump()
    with pytest.raises(error, match=text):
        scheduler.add(*arguments)
    assert scheduler.dump() == before


def test_a_request_that_can_never_run_is_refused_at_the_door_with_numbers() -> None:
    scheduler = Scheduler(**OPTIONS)
    assert scheduler.lifetime_pages(20, 11) == 8  # ceil((20 + 11 + 1) / 4)
    assert scheduler.add(0, np.zeros(20, np.int64), 11) is Admission.OK
    assert scheduler.add(1, np.zeros(20, np.int64), 12) is Admission.NEVER
    assert scheduler.explain_never(20, 12) == (
        "the request may grow to 32 tokens, which with room for nextn + 1 = 1 more takes 9 pages of 4 tokens; "
        "the pool has 8"
    )
    assert scheduler.add(2, np.zeros(64, np.int64), 1) is Admission.NEVER
    assert "at most 63 are accepted" in scheduler.explain_never(64, 1)
    assert scheduler.explain_never(20, 11) == ""
    assert scheduler.request_ids().tolist() == [0]


def test_max_model_len_ends_a_sequence_before_max_tokens(rng: np.random.Generator) -> None:
    world = World.make(max_model_len=20)
    prompt = prompts_of(rng, [15])[0]
    world.add(0, prompt, 2**62)
    world.run()
    assert world.outputs[0] == lone_run(prompt, 5)


def test_the_whole_pool_but_page_zero_can_be_used(rng: np.random.Generator) -> None:
    world = World.make(num_pages=9, num_slots=2)
    world.add(0, prompts_of(rng, [20])[0], 11)
    world.run()
    used = set(np.concatenate([plan.page_table.ravel() for plan in world.plans]).tolist())
    assert used - {0} == set(range(1, 9))
    assert all((plan.slots == 1).all() for plan in world.plans)


def test_tokens_equal_the_lone_run_whatever_the_batch(rng: np.random.Generator) -> None:
    world = World.make(chunk_grid=4)
    add_all(world, prompts_of(rng, rng.integers(1, 40, size=30).tolist()), 12)
    world.run()
    expect_lone_runs(world, 12)


def test_prefill_is_first_come_first_served_within_the_budget(rng: np.random.Generator) -> None:
    world = World.make()
    add_all(world, prompts_of(rng, [10, 5, 9, 1]), 2)
    plan = world.step()
    assert (plan.kind, plan.num_rows, plan.request_ids.tolist()) == ("prefill", 16, [0, 1, 2])
    assert plan.query_start.tolist() == [0, 10, 15, 16]
    assert plan.sample_rows.tolist() == [9, 14, -1]
    plan = world.step()
    assert (plan.kind, plan.request_ids.tolist(), plan.kv_lens.tolist()) == ("prefill", [2, 3], [9, 1])
    assert plan.fresh.tolist() == [False, True]


def test_chunks_end_on_the_grid(rng: np.random.Generator) -> None:
    world = World.make(chunk_grid=8, max_num_batched_tokens=20)
    add_all(world, prompts_of(rng, [5, 40]), 1)
    world.run()
    ends = [plan.kv_lens[-1] for plan in world.plans if plan.kind == "prefill"]
    assert ends == [8, 24, 40]


def test_nobody_overtakes_a_request_that_must_wait(rng: np.random.Generator) -> None:
    world = World.make(num_pages=13, max_num_batched_tokens=64)
    add_all(world, prompts_of(rng, [20, 30, 1]), 4)
    first_seen: list[int] = []
    while world.scheduler.has_work():
        first_seen += [i for i in world.step().request_ids.tolist() if i not in first_seen]
        waiting = {i for i in world.scheduler.request_ids().tolist() if world.scheduler.state(i) == "waiting"}
        assert not (1 in waiting and 2 in first_seen)
    assert first_seen == [0, 1, 2]


def test_prefill_gives_way_to_decode(rng: np.random.Generator) -> None:
    world = World.make(num_pages=101, max_num_batched_tokens=8, max_consecutive_prefills=3)
    add_all(world, prompts_of(rng, [8] * 8), 9)
    world.run()
    kinds = "".join(plan.kind[0] for plan in world.plans)
    assert kinds.startswith("pppdpppdppd")
    expect_lone_runs(world, 9)


def test_the_most_recently_admitted_is_preempted_and_resumes_first_with_its_replay_start(
    rng: np.random.Generator,
) -> None:
    world = World.make(num_pages=10, max_cache_usage=1.0, max_num_batched_tokens=64)
    for i, prompt in enumerate(prompts_of(rng, [7, 7, 7, 3])):
        world.add(i, prompt, 12, replay_start=2 * (i == 2))
    while world.scheduler.num_preemptions == 0:
        world.step()
    assert [world.scheduler.state(i) for i in range(4)] == ["running", "running", "waiting", "waiting"]
    assert world.scheduler.tokens(2).tolist() == world.context(2)
    assert (world.scheduler.slot(2), world.scheduler.pages(2).tolist()) == (0, [])
    already = len(world.context(2))
    count = len(world.plans)
    world.run()
    resumed = next(plan for plan in world.plans[count:] if 2 in plan.request_ids)
    r = resumed.request_ids.tolist().index(2)
    assert 3 not in np.concatenate([plan.request_ids for plan in world.plans[: world.plans.index(resumed)]])
    assert (resumed.kv_lens[r], resumed.replay_starts[r], resumed.fresh[r]) == (already - 1, 2, True)
    assert resumed.sample_rows[r] == -1
    expect_lone_runs(world, 12)


def test_the_oldest_is_never_preempted(rng: np.random.Generator) -> None:
    world = World.make(num_pages=12, max_cache_usage=1.0)
    add_all(world, prompts_of(rng, rng.integers(1, 12, size=12).tolist()), 20)
    while world.scheduler.has_work():
        running = [i for i in world.scheduler.request_ids().tolist() if world.scheduler.state(i) != "waiting"]
        world.step()
        if running and running[0] in world.scheduler.request_ids():
            assert world.scheduler.state(running[0]) != "waiting"
    assert world.scheduler.num_preemptions > 3
    expect_lone_runs(world, 20)


@pytest.mark.parametrize("steps, state", [(0, "waiting"), (1, "prefill"), (2, "running"), (5, "running")])
def test_abort_works_in_every_state_and_harms_nobody(rng: np.random.Generator, steps: int, state: str) -> None:
    world = World.make()
    prompts = prompts_of(rng, [3, 20])
    add_all(world, prompts, 8)
    for _ in range(steps):
        world.step()
    assert world.scheduler.state(1) == state
    assert world.scheduler.abort(1)
    assert not world.scheduler.abort(1)
    world.scheduler.check_integrity()
    with pytest.raises(ValueError, match="request_id=1: no live request"):
        world.scheduler.pages(1)
    world.run()
    assert world.outputs[0] == lone_run(prompts[0], 8)


def test_pages_of_an_aborted_request_return_only_after_the_step_in_flight(rng: np.random.Generator) -> None:
    world = World.make()
    add_all(world, prompts_of(rng, [3, 5]), 8)
    world.step()
    world.launch()
    held = len(world.scheduler.pages(1))
    free = world.scheduler.num_free_pages
    world.scheduler.abort(1)
    world.scheduler.check_integrity()
    assert (world.scheduler.num_free_pages, world.scheduler.num_deferred_pages) == (free, held)
    assert world.scheduler.num_deferred_slots == 1
    assert world.settle() == [1, 0]
    assert (world.scheduler.num_free_pages, world.scheduler.num_deferred_pages) == (free + held, 0)


def test_a_request_id_is_free_again_at_once_and_its_zombie_row_is_not_taken_for_the_new_one(
    rng: np.random.Generator,
) -> None:
    world = World.make()
    old, new = prompts_of(rng, [5, 6])
    world.add(0, old, 8)
    world.launch()
    world.scheduler.abort(0)
    world.add(0, new, 8)
    assert world.settle() == [0]
    world.run()
    assert world.outputs[0] == lone_run(new, 8)


def test_a_step_must_be_committed_before_the_next_is_scheduled() -> None:
    world = World.make()
    world.add(0, [1, 2], 4)
    world.launch()
    with pytest.raises(RuntimeError, match="step 1 must be committed first"):
        world.launch()


def test_a_finished_request_frees_what_it_holds_and_others_go_on(rng: np.random.Generator) -> None:
    world = World.make()
    prompts = prompts_of(rng, [3, 4])
    add_all(world, prompts, 8)
    world.step()
    world.launch()
    world.settle(finished=frozenset({0}))
    assert world.scheduler.request_ids().tolist() == [1]
    world.run()
    assert world.outputs == {0: lone_run(prompts[0], 2), 1: lone_run(prompts[1], 8)}


def test_any_byte_but_zero_means_finished() -> None:
    world = World.make()
    add_all(world, [[1, 2, 3], [4]], 8)
    plan = world.launch()
    assert plan is not None
    finished = np.array([2, 0], np.uint8).view(np.bool_)
    world.scheduler.commit(plan.step_id, plan.request_ids, np.array([5, 6]), np.array([1, 1], np.int32), finished)
    assert world.scheduler.request_ids().tolist() == [1]


def _commit_arguments(world: World) -> dict:
    plan = world.in_flight[0].plan
    return {
        "step_id": plan.step_id,
        "request_ids": plan.request_ids.copy(),
        "tokens": np.array([5, 6], np.int64),
        "counts": np.array([1, 1], np.int32),
        "finished": np.zeros(2, np.bool_),
        "draft_tokens": np.zeros(0, np.int64),
        "draft_counts": np.zeros(2, np.int32),
    }


@pytest.mark.parametrize(
    "change, text",
    [
        ({"step_id": 1}, "step_id=1: the oldest step in flight is 2"),
        ({"request_ids": np.array([1, 0])}, r"request_ids\[0\]=1: the plan has request 0"),
        ({"request_ids": np.array([0])}, "request_ids: has 1 elements, must have 2"),
        ({"counts": np.array([1, 2], np.int32)}, r"counts\[1\]=2: must be in 1 .. 1"),
        ({"counts": np.array([0, 1], np.int32)}, r"counts\[0\]=0: must be in 1 .. 1"),
        ({"counts": np.array([-1, 1], np.int32)}, r"counts\[0\]=-1"),
        ({"tokens": np.array([5])}, "tokens: has 1 elements, must have 2"),
        ({"tokens": np.array([5, -6])}, r"tokens\[1\]=-6"),
        ({"finished": np.zeros(3, np.bool_)}, "finished: has 3"),
        ({"draft_counts": np.array([0, 3], np.int32)}, r"draft_counts\[1\]=3: must be in 0 .. 2"),
        ({"draft_counts": np.array([0, 1], np.int32)}, "draft_tokens: has 0 elements, must have 1"),
        ({"draft_counts": np.array([0, 1, 0], np.int32)}, "draft_counts: has 3"),
        (
            {"draft_counts": np.array([0, 1], np.int32), "draft_tokens": np.array([-1])},
            r"draft_tokens\[0\]=-1",
        ),
    ],
)
def test_a_bad_commit_is_refused_and_changes_nothing(change: dict, text: str) -> None:
    world = World.make(nextn=2, max_num_batched_tokens=24)
    add_all(world, [[1, 2, 3], [4]], 8)
    world.step()
    world.launch()
    before = world.scheduler.dump()
    with pytest.raises(ValueError, match=text):
        world.scheduler.commit(**(_commit_arguments(world) | change))
    assert world.scheduler.dump() == before
    world.scheduler.commit(**_commit_arguments(world))


def test_a_commit_takes_several_tokens_and_drafts_never_pass_the_end(rng: np.random.Generator) -> None:
    world = World.make(nextn=3, max_num_batched_tokens=32)

    def drafter(request_id: int, context: list[int]) -> list[int]:
        drafts: list[int] = []
        for _ in range(int(rng.integers(0, 4))):
            right = next_token(context + drafts)
            drafts.append(right if rng.random() < 0.8 else (right + 1) % 1000)
        return drafts

    world.drafter = drafter  # type: ignore[method-assign]
    add_all(world, prompts_of(rng, rng.integers(1, 20, size=20).tolist()), 13)
    world.run()
    decodes = [plan for plan in world.plans if plan.kind == "decode"]
    assert max(int(np.diff(plan.query_start).max()) for plan in decodes) == 4
    assert max(int(plan.positions.max()) for plan in decodes) <= 19 + 13 - 1
    assert sum(plan.num_requests for plan in decodes) < 20 * 12 * 0.7
    expect_lone_runs(world, 13)


def test_no_token_beyond_the_limit_is_taken() -> None:
    world = World.make(nextn=3, max_num_batched_tokens=32, max_in_flight=2)
    world.add(0, [1, 2], 6)

    def commit(plan: StepPlan | None, tokens: list[int], drafts: list[int]) -> list[int]:
        assert plan is not None
        appended = world.scheduler.commit(
            plan.step_id,
            plan.request_ids,
            np.array(tokens, np.int64),
            np.array([len(tokens)], np.int32),
            np.zeros(1, np.bool_),
            np.array(drafts, np.int64),
            np.array([len(drafts)], np.int32),
        )
        return appended.tolist()

    assert commit(world.scheduler.schedule(), [9], [4, 5, 6]) == [1]
    first, second = world.scheduler.schedule(), world.scheduler.schedule()
    assert commit(first, [4, 5, 8], []) == [3]
    with pytest.raises(ValueError, match=r"counts\[0\]=3: must be in 1 .. 2"):
        commit(second, [7, 7, 7], [])
    assert commit(second, [7, 7], []) == [2]
    assert not world.scheduler.has_work()


def test_a_discarded_step_is_computed_again_with_the_same_tokens(rng: np.random.Generator) -> None:
    world = World.make()
    add_all(world, prompts_of(rng, [5, 30]), 8)
    for failing in (0, 2, 5):
        while len(world.plans) <= failing:
            world.step()
        step_id = world.launch()
        assert step_id is not None
        world.in_flight.pop()
        world.memory[1:] = -1
        world.scheduler.discard(step_id.step_id)
        world.scheduler.check_integrity()
        assert world.is_empty()
    world.run()
    expect_lone_runs(world, 8)


def test_one_step_of_lag_gives_the_same_tokens(rng: np.random.Generator) -> None:
    world = World.make(num_pages=14, max_in_flight=2, max_cache_usage=1.0)
    add_all(world, prompts_of(rng, rng.integers(1, 20, size=20).tolist()), 12)
    world.run()
    lagging = [plan for plan in world.plans if (plan.previous_rows >= 0).any()]
    assert len(lagging) > 20
    assert all((plan.tokens[plan.previous_rows >= 0] == -1).all() for plan in lagging)
    assert world.scheduler.num_preemptions > 0
    expect_lone_runs(world, 12)


def test_a_request_that_finished_in_the_step_before_is_a_zombie_row(rng: np.random.Generator) -> None:
    world = World.make(max_in_flight=2)
    prompts = prompts_of(rng, [3, 4])
    add_all(world, prompts, 8)
    world.step()
    world.launch()
    world.launch()
    assert world.settle(finished=frozenset({0})) == [1, 1]
    assert world.scheduler.num_deferred_slots == 1
    assert world.settle() == [0, 1]
    world.run()
    assert world.outputs == {0: lone_run(prompts[0], 2), 1: lone_run(prompts[1], 8)}


def test_plan_arrays_outlive_the_plan_and_the_scheduler(rng: np.random.Generator) -> None:
    world = World.make()
    add_all(world, prompts_of(rng, [6, 7]), 8)
    plan = world.step()
    arrays = {name: getattr(plan, name) for name in ("request_ids", "tokens", "positions", "page_table", "fresh")}
    copies = {name: array.copy() for name, array in arrays.items()}
    again = plan.tokens
    assert np.shares_memory(again, arrays["tokens"])
    world.run()
    del plan, again, world
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, copies[name])
        assert array.flags.writeable and not array.flags.owndata


def test_dtypes_of_a_plan() -> None:
    world = World.make()
    world.add(0, [1, 2, 3], 4)
    plan = world.step()
    wide = {"request_ids", "positions", "tokens"}
    narrow = {"slots", "query_start", "kv_lens", "page_table", "sample_rows", "replay_starts", "previous_rows"}
    assert {getattr(plan, name).dtype for name in wide} == {np.dtype(np.int64)}
    assert {getattr(plan, name).dtype for name in narrow} == {np.dtype(np.int32)}
    assert plan.fresh.dtype == np.bool_
    assert plan.page_table.shape == (1, 1)


def test_the_dump_names_requests_and_resources(rng: np.random.Generator) -> None:
    world = World.make()
    add_all(world, prompts_of(rng, [3] * 70), 4)
    world.launch()
    dump = world.scheduler.dump()
    assert "pages: 26 free + 0 deferred of 32" in dump
    assert "in flight: step 1 prefill, 6 requests" in dump
    assert "request 0: prefill, 3 tokens (prompt 3, limit 7), 0 computed, 1 pages, slot 1" in dump
    assert dump.endswith("and 6 more\n")


def test_calls_from_several_threads_are_served_one_at_a_time(rng: np.random.Generator) -> None:
    world = World.make(num_pages=200)
    prompts = prompts_of(rng, [5] * 300)
    done = threading.Event()

    def busybody() -> None:
        while not done.is_set():
            world.scheduler.dump()
            world.scheduler.abort(10_000)
            world.scheduler.check_integrity()

    threads = [threading.Thread(target=busybody) for _ in range(3)]
    for thread in threads:
        thread.start()
    add_all(world, prompts, 3)
    world.run()
    done.set()
    for thread in threads:
        thread.join()
    expect_lone_runs(world, 3)


@pytest.mark.parametrize("prompt_len", [1, 7, 99, 100, 101, 2**31, 2**63 - 1])
@pytest.mark.parametrize("max_tokens", [1, 50, 2**31, 2**63 - 1])
def test_pages_of_a_lifetime_end_at_the_longest_sequence(prompt_len: int, max_tokens: int) -> None:
    core = Scheduler(1000, 8, 5, 4, 64, max_model_len=100, nextn=3)
    assert core.lifetime_pages(prompt_len, max_tokens) == -(-(min(prompt_len + max_tokens, 100) + 3 + 1) // 8)


@pytest.mark.parametrize(("prompt_len", "max_tokens"), [(0, 1), (1, 0), (-5, -5), (-(2**63), 1), (1, -(2**63))])
@pytest.mark.parametrize("method", ["lifetime_pages", "explain_never"])
def test_lengths_below_one_are_refused(method: str, prompt_len: int, max_tokens: int) -> None:
    core = Scheduler(1000, 8, 5, 4, 64, max_model_len=100)
    with pytest.raises(ValueError, match="must be at least 1"):
        getattr(core, method)(prompt_len, max_tokens)
