"""Hypothesis drives one rank by hand: any interleaving of calls keeps every law, in lock-step with the reference."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from equivalence.simulator.lockstep import check_same_plan
from equivalence.simulator.rank import Rank
from equivalence.simulator.world import Arrival, World, draw

pytestmark = pytest.mark.ci

SMALL = {"num_slots": 5, "max_num_seqs": 4, "chunk_grid": 2, "max_num_batched_tokens": 16, "max_model_len": 24}
QUIET = {"ranks": 1, "discard": 0.0, "late": 0.0, "early": 0.0, "budgets": 0.0, "arrivals": []}
"""What happens is up to hypothesis alone."""


class SchedulerMachine(RuleBasedStateMachine):
    """add, abort, step, commit and fail in any order."""

    rank: Rank

    @initialize(
        nextn=st.sampled_from([0, 1, 3]),
        pages=st.integers(8, 24),
        in_flight=st.sampled_from([1, 2]),
        all_interval=st.sampled_from([1, 3]),
        acceptance=st.sampled_from([0.0, 0.7, 1.0]),
    )
    def begin(self, nextn: int, pages: int, in_flight: int, all_interval: int, acceptance: float) -> None:
        limits = {"nextn": nextn, "page_size": 4, "num_pages": pages, "max_in_flight": in_flight}
        limits |= {"prefill_all_interval": all_interval, "prefill_any_interval": 2 * all_interval}
        world = World.from_json(draw(0, 1).to_json() | SMALL | QUIET | limits | {"acceptance": acceptance})
        self.rank = Rank(world, 0, with_reference=True)
        self.ids = 0

    @rule(prompt_len=st.integers(1, 26), max_tokens=st.integers(1, 30), replay=st.booleans())
    def add(self, prompt_len: int, max_tokens: int, replay: bool) -> None:
        self.ids += 1
        self.rank.add(Arrival(self.ids, 0, 0, prompt_len, max_tokens, prompt_len // 2 if replay else 0))

    @precondition(lambda self: self.ids > 0)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.rank.abort(data.draw(st.integers(1, self.ids)))

    @precondition(lambda self: len(self.rank.in_flight) < self.rank.world.max_in_flight)
    @rule()
    def step(self) -> None:
        plan = self.rank.pair.schedule_core()
        check_same_plan(plan, self.rank.pair.schedule_reference())
        self.rank.launch(plan)

    @precondition(lambda self: self.rank.in_flight)
    @rule()
    def commit(self) -> None:
        self.rank.finish(fails=False)

    @precondition(lambda self: self.rank.in_flight)
    @rule()
    def fail(self) -> None:
        self.rank.finish(fails=True)

    def teardown(self) -> None:
        if not hasattr(self, "rank"):
            return
        while self.rank.has_work:
            if self.rank.in_flight:
                self.commit()
            else:
                self.step()
        self.rank.laws.check_end()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)
