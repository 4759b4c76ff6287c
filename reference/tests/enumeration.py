"""Exact laws of randomised programs, by running them along every branch of their random decisions; small ones only.

Knows programs that take a `verification.Source`; knows no rule. Two ways to draw: `Branches` branches over the tokens
of a row, `SharedNoise` over the noise words of a position, so that two rows drawn there see the same ones.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np
import torch

from reference import sampler
from reference.sampler import Role

Outcome = TypeVar("Outcome", bound=Hashable)
#: Noise words that stand for all of them: nothing in common, no order, both ends.
WORDS = (0, 0x3FFF1234, 0x9ABC0001, 0xFFFFFFFF)


class Branches:
    """A source that follows a path of decisions, then takes the first possible one at each; exact for `weight`."""

    def __init__(self, path: Sequence[int]) -> None:
        self.weight = 1.0
        self.taken: list[int] = []
        self.others: list[list[int]] = []
        self._path = path

    def pick(self, probabilities: Sequence[float]) -> int:
        """The index of one of the alternatives."""
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        place = len(self.taken)
        choice = self._path[place] if place < len(self._path) else possible[0]
        self.weight *= probabilities[choice]
        self.taken.append(choice)
        self.others.append([i for i in possible if i > choice])
        return choice

    def draws(self, row: torch.Tensor, position: int, role: Role) -> int:
        return self.pick(torch.softmax(row, dim=-1).tolist())

    def accepts(self, position: int, target: float, draft: float) -> bool:
        kept = min(1.0, target / draft)
        return self.pick([1 - kept, kept]) == 1


class SharedNoise(Branches):
    """Draws like the sampler, from words that are the same for every row of one position and role."""

    def __init__(self, path: Sequence[int]) -> None:
        super().__init__(path)
        self._words: dict[tuple[int, Role], np.ndarray] = {}

    def draws(self, row: torch.Tensor, position: int, role: Role) -> int:
        if (position, role) not in self._words:
            combinations = list(itertools.product(WORDS, repeat=row.numel()))
            choice = self.pick([1 / len(combinations)] * len(combinations))
            self._words[position, role] = np.array(combinations[choice], dtype=np.uint32)
        return sampler.gumbel_argmax(row, self._words[position, role])


def law(
    program: Callable[[Branches], Outcome], source: Callable[[Sequence[int]], Branches] = Branches
) -> dict[Outcome, float]:
    """Probability of every outcome of a program."""
    found: dict[Outcome, float] = defaultdict(float)
    pending: list[list[int]] = [[]]
    while pending:
        path = pending.pop()
        branches = source(path)
        found[program(branches)] += branches.weight
        for place in range(len(path), len(branches.taken)):
            pending += [[*branches.taken[:place], other] for other in branches.others[place]]
    return dict(found)


def distance(first: dict[Outcome, float], second: dict[Outcome, float]) -> float:
    """The greatest difference of the probabilities of an outcome."""
    return max(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {*first, *second})
