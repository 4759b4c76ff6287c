"""Worlds hold every law; a broken law is found, made small, and found again from its replay."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from equivalence import registry, replays
from equivalence.cases import Options
from equivalence.checks import scheduler as check
from equivalence.runner import run_check
from equivalence.simulator.device import Device
from equivalence.simulator.lockstep import Pair, check_same_plan
from equivalence.simulator.model import LoneRun
from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.rank import Rank
from equivalence.simulator.simulation import Simulation
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import Arrival, World, draw
from reference.scheduler import Scheduler
from reference.scheduling.request import Request

pytestmark = pytest.mark.ci

CI_STEPS = 50_000


def test_fifty_thousand_steps_hold_every_law() -> None:
    steps = 0
    for case in check.cases(Options(cases=1000)):
        findings = check.run(case, Options())
        assert findings.differences == []
        steps += findings.comparisons
        if steps >= CI_STEPS:
            return
    pytest.fail(f"1000 worlds have {steps} steps only")


def test_a_world_is_the_same_every_time(seed: int) -> None:
    assert Simulation(draw(seed, 100)).run() == Simulation(draw(seed, 100)).run()


def test_a_world_survives_its_json_form(seed: int) -> None:
    world = draw(seed, 50)
    assert World.from_json(json.loads(json.dumps(world.to_json()))) == world


def test_text_does_not_depend_on_latency_placement_or_memory(seed: int) -> None:
    """Every text is compared with the lone text, so a world that ends without a violation is the proof (I22)."""
    world = dataclasses.replace(draw(seed, 60), ranks=1, discard=0.0)
    for in_flight in (1, 2):
        for pages in (world.num_pages, 4 * world.num_pages):
            Simulation(dataclasses.replace(world, max_in_flight=in_flight, num_pages=pages)).run()


def test_a_request_alone_in_the_scheduler_says_its_lone_text() -> None:
    arrival = Arrival(request_id=1, rank=0, tick=0, prompt_len=5, max_tokens=12)
    rank = Rank(dataclasses.replace(draw(3, 1), ranks=1, num_pages=100, max_model_len=40, arrivals=[arrival]), 0, True)
    rank.turn(0)
    known = rank.live[1]
    while rank.has_work:
        plan = None if rank.in_flight else rank.pair.schedule_core()
        check_same_plan(plan, None if rank.in_flight else rank.pair.schedule_reference())
        rank.launch(plan)
        rank.finish(fails=False)
    assert known.output == known.lone.output(known.limit)


class QuietHost:
    """Drafts nothing."""

    def limit(self, request_id: int) -> int:
        return 99

    def prefill_len(self, request_id: int) -> int:
        return 3

    def draft(self, request_id: int, length: int) -> list[int]:
        return []

    def choose_lengths(self, most: list[int]) -> list[int]:
        return most


@pytest.mark.parametrize("place", ["page", "ring"])
def test_a_wrong_entry_becomes_a_wrong_token(place: str) -> None:
    device = Device(num_pages=4, page_size=2, num_slots=2, window=2, nextn=0)
    plan = PlanRows("prefill", 1, [9], [1], [0, 3], [0, 1, 2], [4, 5, 6], [3], [[2, 3]], [2], [True], [0], [-1])
    right = device.execute(plan, None, QuietHost()).tokens[0]
    assert right == [LoneRun([4, 5, 6], window=2, replay_start=0).token(3)]
    spoiled = device.pages[2] if place == "page" else device.rings[1]
    spoiled[1] += 1
    plan = PlanRows("decode", 2, [9], [1], [0, 1], [2], [6], [3], [[2, 3]], [0], [False], [0], [-1])
    assert device.execute(plan, None, QuietHost()).tokens[0] != right


@pytest.fixture
def broken_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that releases the pages of a dead request although a step in flight uses them."""
    monkeypatch.setattr(Scheduler, "_release", _release_at_once)


def _release_at_once(self: Scheduler, request: Request) -> None:
    self.page_pool.give_back(request.pages, 0)
    self.slot_pool.give_back([request.slot], 0)
    self.holders.remove(request)


@pytest.mark.usefixtures("broken_reference")
def test_a_difference_becomes_a_small_replay_that_fails_again(tmp_path: Path) -> None:
    options = Options(cases=50, fail_fast=True)
    failed = run_check(registry.CHECKS["scheduler"], options, replay_folder=tmp_path).results[-1]
    assert re.match(r"seed \d+, step \d+", failed.findings.differences[0].item)
    assert failed.replay is not None
    again, _ = replays.read(failed.replay)
    assert 1 <= len(check.world_of(again).arrivals) <= 4 < len(check.world_of(failed.case).arrivals)
    difference = check.run(again, options).differences[0]
    assert (difference.kind, difference.detail[:9]) == ("law", "lock-step")


def test_a_stall_is_an_error_that_names_the_request_and_what_it_lacks() -> None:
    limits = {**draw(0, 1).limits(), "max_in_flight": 2, "nextn": 0, "num_pages": 9, "page_size": 4}
    pair = Pair({**limits, "max_model_len": 16, "prefill_any_interval": 1, "stall_limit": 5})
    pair.add(17, [1, 2, 3], 2, 0)
    plan = pair.schedule_core()
    check_same_plan(plan, pair.schedule_reference())
    if plan is None:
        pytest.fail("nothing to run")
    pair.commit(plan, [[4]], [False], [[]])
    check_same_plan(pair.schedule_core(), pair.schedule_reference())
    stalls = [calls_until_a_stall(pair.schedule_core), calls_until_a_stall(pair.schedule_reference)]
    assert [calls for calls, _ in stalls] == [5, 5]
    assert all("request 17" in message for _, message in stalls)


def calls_until_a_stall(schedule: Callable[[], object]) -> tuple[int, str]:
    """How many calls it takes, and what the error says."""
    for calls in range(1, 99):
        try:
            schedule()
        except (RuntimeError, ViolationError) as error:
            return calls, str(error)
    pytest.fail("99 calls without progress and no error")


def test_a_law_prints_both_sides() -> None:
    simulation = Simulation(draw(1, 50), with_reference=False)
    rank = simulation.ranks[0]
    for _ in range(20):
        simulation.tick()
    holding = next(iter(rank.laws.ledger.holders.values()))
    holding.pages.append(holding.pages[0])
    with pytest.raises(ViolationError, match=r"I1: \d+ free \+ \d+ owned \+ \d+ deferred, usable \d+"):
        rank.laws.i1_every_page_is_in_one_place()
    with pytest.raises(ViolationError, match=r"I3: pages .* have two owners"):
        rank.laws.i3_nothing_has_two_owners()
