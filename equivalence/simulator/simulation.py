"""Runs one world to its end: the clock, the ranks in step with each other, late steps, early commits, votes.

Knows the order of things; what a rank does is in `rank.py`, what must hold in `laws.py`.
"""

from __future__ import annotations

from dataclasses import fields

from equivalence.simulator.lockstep import check_same_plan
from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.rank import Rank, Summary, chance
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.votes import Group
from equivalence.simulator.world import World


class Simulation:
    """All ranks of one world. `run` takes it to its end; `tick` is one turn of the clock.

    with_reference: False leaves the core alone under the laws.
    """

    def __init__(self, world: World, with_reference: bool = True) -> None:
        self.world = world
        self.with_reference = with_reference
        self.now = 0
        self.ranks = [Rank(world, number, with_reference) for number in range(world.ranks)]
        pairs = [rank.pair for rank in self.ranks]
        self._cores = Group([pair.schedule_core for pair in pairs], [pair.core_vote for pair in pairs])
        self._references = Group([pair.schedule_reference for pair in pairs], [pair.reference_vote for pair in pairs])

    @property
    def steps(self) -> int:
        """Steps launched so far, each rank's counted."""
        return sum(rank.summary.steps for rank in self.ranks)

    def run(self) -> Summary:
        """To the end: no arrival is left, nothing is live, everything is free. Raises ViolationError."""
        while not all(rank.is_over for rank in self.ranks):
            self.tick()
        for rank in self.ranks:
            rank.laws.check_end()
            rank.summary.preemptions = rank.pair.core.num_preemptions
        return self.summary()

    def summary(self) -> Summary:
        """Of all ranks together."""
        names = [field.name for field in fields(Summary)]
        return Summary(*[sum(getattr(rank.summary, name) for rank in self.ranks) for name in names])

    def tick(self) -> None:
        """Arrivals and aborts; one step scheduled and executed; aborts in flight; one step committed."""
        self._skip_idle_time()
        for rank in self.ranks:
            rank.turn(self.now)
        if self._is_commit_due():
            self._land()
        launched = self._launch()
        for rank in self.ranks:
            rank.turn_in_flight()
        if self._in_flight and not launched:
            self._land()
        elif self._in_flight and self.world.max_in_flight == 1:
            self._wait_and_land()
        self.now += 1
        for rank in self.ranks:
            rank.laws.check_progress()

    @property
    def _in_flight(self) -> list[int]:
        """Steps in flight, alike on all ranks."""
        return [launched.plan.step_id for launched in self.ranks[0].in_flight]

    def _skip_idle_time(self) -> None:
        if not any(rank.has_work for rank in self.ranks):
            self.now = max(self.now, min(rank.next_event() for rank in self.ranks if not rank.is_over))

    def _is_commit_due(self) -> bool:
        if len(self._in_flight) == self.world.max_in_flight:
            return True
        return bool(self._in_flight) and chance(self.world.seed, "early", self._in_flight[0], self.world.early)

    def _launch(self) -> bool:
        if not any(rank.has_work for rank in self.ranks):
            return False
        plans = self._cores.schedule()
        if self.with_reference:
            for plan, reference in zip(plans, self._references.schedule(), strict=True):
                check_same_plan(plan, reference)
            if self._cores.votes != self._references.votes:
                raise ViolationError("I8", f"votes of the core {self._cores.votes}, reference {self._references.votes}")
        check_same_kind(plans)
        for rank, plan in zip(self.ranks, plans, strict=True):
            rank.launch(plan)
        return plans[0] is not None

    def _land(self) -> None:
        for rank in self.ranks:
            rank.land()

    def _wait_and_land(self) -> None:
        """A synchronous step; a late one lets a few ticks of arrivals and aborts pass."""
        step_id = self._in_flight[0]
        if chance(self.world.seed, "late", step_id, self.world.late):
            for _ in range(1 + step_id % 3):
                self.now += 1
                for rank in self.ranks:
                    rank.wait(self.now)
        self._land()


def check_same_kind(plans: list[PlanRows | None]) -> None:
    """I9: every rank runs the same kind of step; I10: a prefill step has rows on some rank."""
    kinds = {None if plan is None else (plan.kind, plan.step_id) for plan in plans}
    if len(kinds) != 1:
        raise ViolationError("I9", f"ranks run {[plan and (plan.kind, plan.step_id) for plan in plans]}")
    if plans[0] is not None and plans[0].kind == "prefill" and not any(plan and plan.request_ids for plan in plans):
        raise ViolationError("I10", f"step {plans[0].step_id} is a prefill step without a row on any rank")
