"""Makes a failing world smaller while it still breaks the same law.

Knows worlds and how to run one; knows nothing about what the laws mean. The time it may take is bounded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import Arrival, World

BUDGET_SECONDS = 20.0

Runner = Callable[[World], ViolationError | None]

_QUIET = {"compile_ticks": 0, "abort_tick": 0, "fails_after": 0, "replay_start": 0, "prompt_len": 1}


def shrink(
    world: World, violation: ViolationError, run: Runner, seconds: float = BUDGET_SECONDS
) -> tuple[World, ViolationError]:
    """A world with fewer requests and fewer mishaps that breaks the same law, with what it says."""
    deadline = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for candidate in _candidates(world):
            found = run(candidate)
            if found is not None and found.law == violation.law:
                world, violation, progress = candidate, found, True
                break
            if time.monotonic() > deadline:
                break
    return world, violation


def _candidates(world: World) -> Iterator[World]:
    """Smaller worlds, the boldest first."""
    arrivals = world.arrivals
    size = len(arrivals) // 2
    while size >= 1:
        for begin in range(0, len(arrivals), size):
            yield dataclasses.replace(world, arrivals=arrivals[:begin] + arrivals[begin + size :])
        size //= 2
    for name in ("late", "discard", "early"):
        if getattr(world, name):
            yield World.from_json({**world.to_json(), name: 0.0})
    for index, arrival in enumerate(arrivals):
        for smaller in _simpler(arrival):
            yield dataclasses.replace(world, arrivals=[*arrivals[:index], smaller, *arrivals[index + 1 :]])


def _simpler(arrival: Arrival) -> Iterator[Arrival]:
    for name, value in _QUIET.items():
        if getattr(arrival, name) != value:
            yield Arrival(**{**dataclasses.asdict(arrival), name: value})
    if arrival.prompt_len > 2:
        yield dataclasses.replace(arrival, prompt_len=arrival.prompt_len // 2, replay_start=0)
    if arrival.max_tokens > 1:
        yield dataclasses.replace(arrival, max_tokens=arrival.max_tokens // 2)
