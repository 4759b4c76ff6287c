"""One world: the limits of a scheduler, the requests that will come, and what goes wrong and when.

Everything is drawn from one seed before the first step, as plain JSON values, so that a world can be stored, replayed
and made smaller. Knows nothing about how a world is run.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from equivalence.simulator.model import STOP_TOKEN, VOCABULARY

_ORDINARY_TOKENS = [token for token in range(VOCABULARY) if token != STOP_TOKEN]


@dataclass
class Arrival:
    """A request.

    rank, tick: where and when it comes; compile_ticks: how long its grammar takes, negative: it fails after as many;
    abort_tick: when it is aborted (0: never); abort_in_flight: between schedule and commit; fails_after: output tokens
    after which it ends with an error (0: never).
    """

    request_id: int
    rank: int
    tick: int
    prompt_len: int
    max_tokens: int
    replay_start: int = 0
    compile_ticks: int = 0
    abort_tick: int = 0
    abort_in_flight: bool = False
    fails_after: int = 0

    def prompt(self) -> list[int]:
        """Its tokens, from its id; none is the stop token."""
        return random.Random(self.request_id).choices(_ORDINARY_TOKENS, k=self.prompt_len)


@dataclass
class World:
    """Limits as in the constructor of the scheduler, then the actors.

    ranks: that vote together; steps: no request arrives once a rank has launched that many; window: of the simulated
    ring; acceptance: chance of a right draft; budgets: share of decode steps that verify some of their drafts only;
    late: share of steps that take several ticks; discard: share of steps that fail; early: share of asynchronous steps
    that are committed before the next is scheduled; crowd: most live requests of a rank at a time.
    """

    seed: int
    num_pages: int
    page_size: int
    num_slots: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    nextn: int
    chunk_grid: int
    max_consecutive_prefills: int
    max_cache_usage: float
    max_in_flight: int
    prefill_all_interval: int
    prefill_any_interval: int
    max_wait_steps: int
    ranks: int
    steps: int
    window: int
    acceptance: float
    budgets: float
    late: float
    discard: float
    early: float
    crowd: int
    arrivals: list[Arrival] = field(default_factory=list)

    def limits(self) -> dict[str, Any]:
        """Keyword arguments of the scheduler's constructor."""
        names = (
            "num_pages page_size num_slots max_num_seqs max_num_batched_tokens max_model_len nextn chunk_grid "
            "max_consecutive_prefills max_cache_usage max_in_flight prefill_all_interval prefill_any_interval "
            "max_wait_steps"
        )
        return {name: getattr(self, name) for name in names.split()}

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the arrivals."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> World:
        """The world of a replay."""
        fields = dict(record)
        fields["arrivals"] = [Arrival(**arrival) for arrival in record["arrivals"]]
        return cls(**fields)


def draw(seed: int, steps: int | None = None) -> World:
    """The world of a seed. steps: its length, drawn from 200 .. 2,000 when not given."""
    rng = random.Random(seed)
    nextn = rng.choice([0, 0, 1, 2, 3, 5])
    page_size = rng.choice([size for size in (1, 2, 3, 4, 8, 16) if size > nextn])
    grid = rng.choice([1, 1, 2, 4, 8])
    seqs = rng.choice([1, 2, 4, 6, 8, 10, 12])
    longest = rng.randint(8, 72)
    lifetime = -(-(longest + nextn + 1) // page_size)
    share = rng.choice([0.0, 0.2, 0.35, 1.0])  # of the pages that all would need at their longest
    pages = 1 + max(lifetime - rng.choice([0, lifetime // 4]), round(share * seqs * lifetime))
    world = World(
        seed=seed,
        num_pages=max(2, pages),
        page_size=page_size,
        num_slots=1 + max(1, seqs + rng.randint(-2, 2)),
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs * (nextn + 1), grid, rng.choice([1, longest // 2, longest, 3 * longest])),
        max_model_len=longest,
        nextn=nextn,
        chunk_grid=grid,
        max_consecutive_prefills=rng.choice([1, 2, 8]),
        max_cache_usage=rng.choice([0.5, 0.9, 1.0, 1.0]),
        max_in_flight=rng.choice([1, 2]),
        prefill_all_interval=rng.choice([1, 1, 3, 7]),
        prefill_any_interval=rng.choice([1, 1, 4, 10]),
        max_wait_steps=rng.choice([2, 8, 500]),
        ranks=rng.choice([1, 1, 1, 1, 2, 3]),
        steps=rng.randint(200, 2000) if steps is None else steps,
        window=rng.randint(1, 6),
        acceptance=rng.choice([0.0, 0.5, 0.8, 1.0]),
        budgets=rng.choice([0.0, 0.2]),
        late=rng.choice([0.0, 0.2]),
        discard=rng.choice([0.0, 0.0, 0.01, 0.05]),
        early=rng.choice([0.0, 0.1, 0.5]),
        crowd=rng.choice([seqs + 2, 3 * seqs + 2]),
    )
    world.arrivals = _draw_arrivals(rng, world)
    return world


def _draw_arrivals(rng: random.Random, world: World) -> list[Arrival]:
    gap = rng.choice([0.3, 1.0, 3.0, 10.0])
    aborts = rng.choice([0.0, 0.1, 0.3])
    grammars = rng.choice([0.0, 0.3])
    errors = rng.choice([0.0, 0.05])
    long_outputs = rng.random() < 0.6
    share = rng.choice([1, 2, 4, 5])  # of the longest sequence that a prompt may take, in quarters
    balance = rng.choice([0.3, 1.0])  # how evenly the ranks are loaded
    arrivals: list[Arrival] = []
    tick = 0.0
    while tick < 4 * world.steps and len(arrivals) < world.ranks * world.steps:
        length = rng.randint(1, max(1, world.max_model_len * share // 4))
        arrival = Arrival(
            request_id=rng.randrange(1 << 40) if rng.random() < 0.02 else 10 * len(arrivals) + rng.randrange(10),
            rank=rng.randrange(world.ranks) if rng.random() < balance else 0,
            tick=int(tick),
            prompt_len=length,
            max_tokens=rng.randint(1, world.max_model_len if long_outputs else 6),
            replay_start=rng.choice([0, max(0, length - world.window)]),
        )
        if rng.random() < grammars:
            arrival.compile_ticks = rng.choice([1, 5, 20, -3])
        if rng.random() < aborts:
            arrival.abort_tick = arrival.tick + rng.choice([0, 1, rng.randint(1, 60)])
            arrival.abort_in_flight = rng.random() < 0.5
        if rng.random() < errors:
            arrival.fails_after = rng.randint(1, 5)
        arrivals.append(arrival)
        tick += rng.expovariate(world.ranks / gap)
    return arrivals
