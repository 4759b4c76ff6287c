"""Conservation, single ownership, FCFS, progress and lone-run tokens under any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from optimized._core import Admission
from optimized.engine.tests.scheduler_world import World, lone_run, next_token


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, aborts, launches, commits and failures on pools that are mostly too small."""

    @initialize(
        num_pages=st.integers(2, 24),
        page_size=st.integers(3, 5),
        num_slots=st.integers(2, 6),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(18, 30),
        chunk_grid=st.integers(1, 18),
        max_in_flight=st.integers(1, 2),
        usage=st.sampled_from([0.5, 0.9, 1.0]),
    )
    def start(
        self,
        num_pages: int,
        page_size: int,
        num_slots: int,
        max_num_seqs: int,
        budget: int,
        chunk_grid: int,
        max_in_flight: int,
        usage: float,
    ) -> None:
        self.world = World.make(
            num_pages,
            page_size,
            num_slots,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            chunk_grid=chunk_grid,
            nextn=2,
            max_model_len=64,
            max_in_flight=max_in_flight,
            max_cache_usage=usage,
        )
        self.world.drafter = self.draft  # type: ignore[method-assign]
        self.lengths: dict[int, int] = {}
        self.ended: set[int] = set()
        self.first_scheduled: list[int] = []

    @staticmethod
    def draft(request_id: int, context: list[int]) -> list[int]:
        right = next_token(context)
        return [right, next_token([*context, right]) + request_id % 2][: len(context) % 3]

    @rule(length=st.integers(1, 70), max_tokens=st.integers(1, 30), token=st.integers(0, 2**62))
    def add(self, length: int, max_tokens: int, token: int) -> None:
        request_id = len(self.lengths)
        scheduler = self.world.scheduler
        verdict = self.world.add(request_id, [token, *range(length - 1)], max_tokens)
        fits = length < 64 and scheduler.lifetime_pages(length, max_tokens) <= scheduler.num_usable_pages
        assert verdict is (Admission.OK if fits else Admission.NEVER)
        assert fits == (request_id in scheduler.request_ids())
        self.lengths[request_id] = min(max_tokens, 64 - length)
        if not fits:
            self.ended.add(request_id)

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = self.world.scheduler.request_ids().tolist()
        if live:
            victim = data.draw(st.sampled_from(live))
            assert self.world.scheduler.abort(victim)
            self.ended.add(victim)

    @precondition(lambda self: len(self.world.in_flight) < self.world.max_in_flight)
    @rule()
    def launch(self) -> None:
        plan = self.world.launch()
        if plan is None:
            assert self.world.in_flight or not self.world.scheduler.has_work()
            return
        self.first_scheduled += [i for i in plan.request_ids.tolist() if i not in self.first_scheduled]
        assert self.first_scheduled == sorted(self.first_scheduled), "a request overtook an earlier one"

    @precondition(lambda self: self.world.in_flight)
    @rule(finish=st.booleans())
    def settle(self, finish: bool) -> None:
        ids = self.world.in_flight[0].plan.request_ids.tolist()
        finished = frozenset(ids[:1]) - self.ended if finish else frozenset()
        self.world.settle(finished)
        self.ended |= finished - set(self.world.scheduler.request_ids().tolist())

    @precondition(lambda self: self.world.in_flight)
    @rule()
    def discard(self) -> None:
        step = self.world.in_flight.pop(0)
        self.world.scheduler.discard(step.plan.step_id)

    @invariant()
    def every_page_and_slot_is_in_one_place(self) -> None:
        if not hasattr(self, "world"):
            return
        scheduler = self.world.scheduler
        scheduler.check_integrity()
        live = scheduler.request_ids().tolist()
        owned = [page for i in live for page in scheduler.pages(i).tolist()]
        assert len(owned) == len(set(owned)), "a page has two owners"
        assert 0 not in owned
        assert len(owned) + scheduler.num_free_pages + scheduler.num_deferred_pages == scheduler.num_usable_pages
        slots = [slot for i in live if (slot := scheduler.slot(i))]
        assert len(slots) == len(set(slots)) == scheduler.num_running
        assert len(slots) + scheduler.num_free_slots + scheduler.num_deferred_slots == scheduler.num_usable_slots

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.run()
        for i, prompt in self.world.prompts.items():
            whole = lone_run(prompt, self.lengths[i])
            output = self.world.outputs[i]
            assert output == whole[: len(output)]
            assert i in self.ended or output == whole


TestSchedulerMachine = pytest.mark.ci(SchedulerMachine.TestCase)
TestSchedulerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
