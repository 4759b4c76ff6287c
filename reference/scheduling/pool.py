"""A pool of numbered resources with deferred release: KV pages and state slots are two of these.

Knows numbers and fences; knows nothing about requests, tokens or what a page or slot holds.
Source: serving specification §6.2 (block manager) and §6.6 (deferred release).
"""

from __future__ import annotations

from collections import Counter
from enum import Enum


class Admission(Enum):
    """Verdict of a pool on a demand: OK fits now, LATER fits once others leave, NEVER fits."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


class Pool:
    """Numbers 1 .. size - 1; number 0 is reserved for padding and never handed out.

    name: for messages; free: ready to be handed out, the last first; deferred: (fence, numbers), oldest first: they
    return when the step with the number `fence` is committed.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.free = list(range(size - 1, 0, -1))
        self.deferred: list[tuple[int, list[int]]] = []

    @property
    def usable(self) -> int:
        """How many numbers there are to hand out."""
        return self.size - 1

    @property
    def pending(self) -> int:
        """How many numbers wait behind a fence."""
        return sum(len(numbers) for _, numbers in self.deferred)

    @property
    def used(self) -> int:
        """How many numbers are not free, those behind a fence included."""
        return self.usable - len(self.free)

    def verdict(self, count: int) -> Admission:
        """Whether `count` more numbers can be taken."""
        if count >= self.size:
            return Admission.NEVER
        return Admission.OK if count <= len(self.free) else Admission.LATER

    def take(self, count: int) -> list[int]:
        """Hand out `count` numbers. Raises RuntimeError when they are not free."""
        if self.verdict(count) is not Admission.OK:
            raise RuntimeError(f"{self.name}: {count} asked for, {len(self.free)} free")
        return [self.free.pop() for _ in range(count)]

    def give_back(self, numbers: list[int], fence: int) -> None:
        """Take numbers back, at once when fence is 0, else when step `fence` is committed."""
        if fence == 0:
            self.free.extend(numbers)
        elif numbers:
            self.deferred.append((fence, numbers))

    def settle(self, step_id: int) -> None:
        """Step `step_id` is committed: what waited for it, or for an earlier one, is free."""
        for fence, numbers in self.deferred:
            if fence <= step_id:
                self.free.extend(numbers)
        self.deferred = [entry for entry in self.deferred if entry[0] > step_id]

    def check_conservation(self, owned: list[int]) -> None:
        """Every number 1 .. size - 1 is free, owned or deferred, and only one of them (invariants I1, I2, I3, I5).

        Raises RuntimeError with both sides of the equation.
        """
        behind = [number for _, numbers in self.deferred for number in numbers]
        found = Counter(self.free + owned + behind)
        if sorted(found.elements()) != list(range(1, self.size)):
            wrong = sorted({n for n, times in found.items() if times > 1 or not 0 < n < self.size})
            lost = sorted(set(range(1, self.size)) - set(found))
            raise RuntimeError(
                f"{self.name}: {len(self.free)} free + {len(owned)} owned + {len(behind)} deferred = {found.total()}, "
                f"usable {self.usable}; more than once or outside: {wrong}, lost: {lost}"
            )
