"""A simulated reduction: the schedulers of all ranks take their turns in one thread and still vote together.

A rank that asks for a reduction is stopped with an exception, which must change nothing; once all ranks have asked, the
minimum is known and every rank is asked again. Knows no scheduler and no law but I8 and I9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np

from equivalence.simulator.violation import ViolationError

Plan = TypeVar("Plan")


class _AskedError(Exception):
    """A rank waits for a reduction."""


class Reduction:
    """The `reduce` of one rank."""

    def __init__(self) -> None:
        self.known: list[list[int]] = []
        self.used = 0
        self.asked: list[int] = []

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        if self.used == len(self.known):
            self.asked = [int(number) for number in numbers]
            raise _AskedError
        self.used += 1
        return list(self.known[self.used - 1])

    def for_core(self, numbers: np.ndarray) -> np.ndarray:
        """The same for the core, which speaks arrays."""
        return np.array(self(numbers.tolist()), np.int64)


class Group(Generic[Plan]):
    """The schedulers of all ranks. schedules: one a rank; reductions: what each was given as `reduce`."""

    def __init__(self, schedules: Sequence[Callable[[], Plan | None]], reductions: Sequence[Reduction]) -> None:
        self.schedules = schedules
        self.reductions = reductions
        self.votes: list[int] = []
        """How many numbers each vote of the last call had."""

    def schedule(self) -> list[Plan | None]:
        """One call of schedule on every rank. Raises ViolationError when their votes do not match (I8)."""
        known: list[list[int]] = []
        while True:
            plans, asked = self._ask(known)
            if not asked:
                self.votes = [len(numbers) for numbers in known]
                return plans
            sizes = {rank: len(numbers) for rank, numbers in asked.items()}
            if len(asked) != len(self.schedules) or len(set(sizes.values())) != 1:
                raise ViolationError(
                    "I8", f"vote {len(known) + 1}: ranks hand in {sizes} numbers of {len(plans)} ranks"
                )
            known.append([min(column) for column in zip(*asked.values(), strict=True)])

    def _ask(self, known: list[list[int]]) -> tuple[list[Plan | None], dict[int, list[int]]]:
        plans: list[Plan | None] = []
        asked: dict[int, list[int]] = {}
        for rank, (schedule, reduction) in enumerate(zip(self.schedules, self.reductions, strict=True)):
            reduction.known, reduction.used = known, 0
            try:
                plans.append(schedule())
            except _AskedError:
                plans.append(None)
                asked[rank] = reduction.asked
                continue
            if reduction.used != len(known):
                raise ViolationError("I8", f"rank {rank} took {reduction.used} votes, others {len(known)}")
        return plans, asked
