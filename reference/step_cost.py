"""What a step costs by its number of rows: a curve through measured points. Knows numbers; measures nothing.

A step of fewer rows than the largest captured size runs at the next captured size, so up to there the curve is a
staircase; beyond, it is linear between points that are both beyond, and after the last one goes on with the last slope.
It never falls.
Source: serving specification §1.8.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence

from reference.spec.errors import ConfigError


class StepCost:
    """Rows -> milliseconds.

    Args:
        points: (rows, milliseconds), rows at least 1 and rising.
        captured: the largest size that steps are padded up to; 0: none.
    Raises:
        ConfigError: no points, rows that do not rise, a time that is not finite and above 0, or no point at `captured`.
    """

    def __init__(self, points: Sequence[tuple[int, float]], captured: int = 0) -> None:
        rows = [size for size, _ in points]
        if not rows or rows[0] < 1 or any(a >= b for a, b in itertools.pairwise(rows)):
            raise ConfigError(f"step cost: rows are {rows}; accepted: at least one size, from 1, rising")
        times = [time for _, time in points]
        if not all(math.isfinite(time) and time > 0 for time in times):
            raise ConfigError(f"step cost: times are {times}; accepted: finite and above 0")
        if captured and captured not in rows:
            raise ConfigError(f"step cost: no point at the largest captured size, {captured}; there are {rows}")
        self._rows = rows
        self._times = list(itertools.accumulate(times, max))
        self._captured = captured

    def __call__(self, rows: int) -> float:
        place = bisect_left(self._rows, rows)
        if place < len(self._rows) and (rows <= self._captured or self._rows[place] == rows):
            return self._times[place]
        if place == 0 or len(self._rows) == 1:
            return self._times[0]
        right = min(place, len(self._rows) - 1)
        left = right - 1
        if place == right and self._rows[left] <= self._captured:
            return self._times[right]
        slope = (self._times[right] - self._times[left]) / (self._rows[right] - self._rows[left])
        return self._times[left] + slope * (rows - self._rows[left])
