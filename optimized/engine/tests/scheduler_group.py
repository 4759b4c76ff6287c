"""A data-parallel group for scheduler tests: a world and, while it schedules, a thread for each rank.

The reduction works in memory. Knows nothing about the voting rules: it records what was asked and checks what must be
the same on every rank.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from optimized._core import StepPlan
from optimized.engine.tests.scheduler_world import World

Reduce = Callable[[np.ndarray], np.ndarray]


class Group:
    """`size` ranks that schedule, commit and vote together."""

    def __init__(self, size: int, **options: Any) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._ballots = [np.zeros(0, dtype=np.int64)] * size
        self._executor = ThreadPoolExecutor(size)
        self.votes: list[list[int]] = [[] for _ in range(size)]  # length of every vote, by rank
        self.kinds: list[str] = []
        self.worlds = [World.make(reduce=self._reduction(rank), **options) for rank in range(size)]

    def close(self) -> None:
        self._executor.shutdown()

    def _reduction(self, rank: int) -> Reduce:
        def reduce(values: np.ndarray) -> np.ndarray:
            self.votes[rank].append(len(values))
            self._ballots[rank] = values
            self._barrier.wait()
            minimum = np.min(self._ballots, axis=0)
            self._barrier.wait()
            return minimum

        return reduce

    def launch(self) -> list[StepPlan | None]:
        """One decision of all ranks; the laws of agreement hold after it."""
        plans = list(self._executor.map(lambda world: world.launch(), self.worlds))
        assert all(votes == self.votes[0] for votes in self.votes), "ranks took different votes"
        kinds = {plan.kind if plan else None for plan in plans}
        assert len(kinds) == 1, f"ranks differ in the kind of step: {kinds}"
        if plans[0] is not None:
            self.kinds.append(plans[0].kind)
            empty = plans[0].kind == "prefill" and all(plan is not None and plan.num_requests == 0 for plan in plans)
            assert not empty, "a prefill step without rows on any rank"
        return plans

    def settle(self) -> None:
        for world in self.worlds:
            world.settle()

    def step(self) -> list[StepPlan | None]:
        """One synchronous step of all ranks."""
        plans = self.launch()
        if plans[0] is not None:
            self.settle()
        return plans

    def turn(self) -> bool:
        """As World.turn; False when nothing is left on any rank."""
        full = len(self.worlds[0].in_flight) == self.worlds[0].max_in_flight
        if full or self.launch()[0] is None:
            if not self.worlds[0].in_flight:
                return False
            self.settle()
        return True

    def run(self, most_turns: int = 10_000) -> None:
        for _ in range(most_turns):
            if not self.turn():
                assert all(world.is_empty() and not world.scheduler.has_work() for world in self.worlds)
                return
        raise AssertionError("no end in sight\n" + "\n".join(world.scheduler.dump() for world in self.worlds))
