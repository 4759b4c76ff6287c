"""One rank in its world: requests that come and leave, the device, and the results that go back to the scheduler.

Knows one rank; the order of things and the other ranks are in `simulation.py`, the laws in `laws.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from equivalence.simulator.device import Device, StepResult
from equivalence.simulator.laws import Laws
from equivalence.simulator.lockstep import Pair
from equivalence.simulator.model import STOP_TOKEN, VOCABULARY, LoneRun
from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import Arrival, World
from reference.verification_lengths import split_budget


@dataclass
class Live:
    """A request that the scheduler was given.

    lone: its text when nothing else runs; limit: tokens it can have; output: its tokens so far.
    """

    arrival: Arrival
    prompt: list[int]
    lone: LoneRun
    limit: int
    output: list[int] = field(default_factory=list)

    @property
    def prefill_len(self) -> int:
        """Positions that its prefill steps compute: a token that it has said is computed by a decode step."""
        return len(self.prompt) + max(0, len(self.output) - 1)


@dataclass
class Launched:
    """A step in flight, with what the device made of it. is_budgeted: it need not verify all drafts that it has."""

    plan: PlanRows
    result: StepResult
    is_budgeted: bool


@dataclass
class Summary:
    """What happened, for the report and to see that a world is worth its time."""

    steps: int = 0
    tokens: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    discarded: int = 0
    zombies: int = 0
    preemptions: int = 0


class Rank:
    """One rank. with_reference: False leaves the core alone under the laws.

    budget: how many drafts the step being launched verifies; None: all that it has.
    """

    def __init__(self, world: World, number: int, with_reference: bool) -> None:
        self.world = world
        self.pair = Pair(world.limits(), with_reference, in_group=world.ranks > 1)
        self.device = Device(world.num_pages, world.page_size, world.num_slots, world.window, world.nextn)
        self.now = 0
        self.summary = Summary()
        self.live: dict[int, Live] = {}  # in order of arrival
        self.in_flight: list[Launched] = []
        self.budget: int | None = None
        self.laws = Laws(self)
        mine = [arrival for arrival in world.arrivals if arrival.rank == number]
        self._coming = sorted(mine, key=lambda arrival: arrival.tick)
        self._next = 0
        self._compiling: list[tuple[int, Arrival]] = []
        self._aborts: dict[int, list[Arrival]] = {}
        self._in_use: set[int] = set()
        for arrival in mine:
            if arrival.abort_tick:
                self._aborts.setdefault(arrival.abort_tick, []).append(arrival)

    @property
    def is_open(self) -> bool:
        """Whether more requests will come."""
        return self._next < len(self._coming) and self.summary.steps < self.world.steps

    @property
    def has_work(self) -> bool:
        """Whether a request is live or a step in flight."""
        return bool(self.pair.core.has_work())

    @property
    def is_over(self) -> bool:
        """Nothing will come and nothing is left."""
        return not (self.is_open or self._compiling or self.has_work)

    def next_event(self) -> int:
        """The tick before which nothing happens while the scheduler has no work."""
        due = [tick for tick, _ in self._compiling]
        if self.is_open:
            due.append(self._coming[self._next].tick)
        return min(due, default=self.now)

    # Actors

    def turn(self, now: int) -> None:
        """Before a step: arrivals, aborts, grammars."""
        self.now = now
        self._arrive()
        self._abort(in_flight=False)
        self._compile()

    def turn_in_flight(self) -> None:
        """While a step is in flight: aborts."""
        self._abort(in_flight=True)

    def wait(self, now: int) -> None:
        """A tick during which a late step is in flight and nothing can be scheduled."""
        self.turn(now)
        self.turn_in_flight()

    def _arrive(self) -> None:
        while self.is_open and self._coming[self._next].tick <= self.now:
            if len(self.live) + len(self._compiling) >= self.world.crowd:
                return
            arrival = self._coming[self._next]
            self._next += 1
            self._compiling.append((self.now + abs(arrival.compile_ticks), arrival))

    def _compile(self) -> None:
        """Grammars that are ready reach the scheduler; those that fail, or were aborted while compiling, never do."""
        if not self._compiling:
            return
        still = []
        for due, arrival in self._compiling:
            if due > self.now:
                still.append((due, arrival))
            elif arrival.compile_ticks >= 0 and not 0 < arrival.abort_tick < self.now:
                self.add(arrival)
        self._compiling = still

    def add(self, arrival: Arrival) -> None:
        """A request reaches the scheduler, unless its id is taken."""
        if arrival.request_id in self.live:
            return
        prompt = arrival.prompt()
        verdict = self.pair.add(arrival.request_id, prompt, arrival.max_tokens, arrival.replay_start)
        self.laws.check_admission(arrival, verdict)
        if verdict == "NEVER":
            self.summary.refused += 1
            return
        limit = min(len(prompt) + arrival.max_tokens, self.world.max_model_len)
        lone = LoneRun(prompt, self.world.window, arrival.replay_start)
        self.live[arrival.request_id] = Live(arrival, prompt, lone, limit)

    def _abort(self, in_flight: bool) -> None:
        for arrival in self._aborts.get(self.now, ()):
            if arrival.abort_in_flight is in_flight:
                self.abort(arrival.request_id)

    def abort(self, request_id: int) -> None:
        """End a request, live or not."""
        known = self.live.pop(request_id, None)
        was_live = self.pair.abort(request_id)
        if was_live != (known is not None):
            raise ViolationError("I20", f"request {request_id}: abort says {was_live}, live {known}")
        self.summary.aborted += was_live
        self._check_state()

    # What the device asks for

    def limit(self, request_id: int) -> int:
        """Most tokens of a live request."""
        return self.live[request_id].limit

    def prefill_len(self, request_id: int) -> int:
        """Positions that its prefill steps compute."""
        return self.live[request_id].prefill_len

    def draft(self, request_id: int, length: int) -> list[int]:
        """Drafts of what follows its first `length` tokens; each is right with the world's chance."""
        known = self.live[request_id]
        rng = random.Random(self.world.seed ^ (request_id << 20) ^ length)
        count = rng.randint(0, self.world.nextn)
        drafts = []
        for at in range(length, min(length + count, self.world.max_model_len)):
            right = known.lone.token(at)
            drafts.append(right if rng.random() < self.world.acceptance else (right + 1) % VOCABULARY)
        return drafts

    def choose_lengths(self, most: list[int]) -> list[int]:
        """All drafts, or the budget's share of each by confidences of their own."""
        if self.budget is None:
            return most
        survivals = self._survivals(f"{self.world.seed} {self.summary.steps}", len(most)).tolist()
        return split_budget([row[:length] for row, length in zip(survivals, most, strict=True)], self.budget)

    def _choose_budget(self, plan: PlanRows) -> int | None:
        """Now and then a budget of drafts, from confidences that the drafts at hand have no part in."""
        world = self.world
        if plan.kind == "prefill" or not world.nextn or not chance(world.seed, "budget", plan.step_id, world.budgets):
            return None
        rng = random.Random(f"{world.seed} cost {plan.step_id}")
        rows = [end - begin for begin, end in zip(plan.query_start, plan.query_start[1:], strict=False)]
        counts = np.arange(1.0 + len(rows) + rng.randint(0, len(rows) * world.nextn))  # rows of a step, from 0
        cost = rng.choice([counts, 8.0 + counts, 4.0 + counts // 4, np.ones_like(counts)])
        survivals = self._survivals(f"{world.seed} stale {plan.step_id}", len(rows))
        return self.pair.choose_budget(survivals, [count - 1 for count in rows], np.maximum(cost, 0.5))

    def _survivals(self, seed: str, requests: int) -> np.ndarray:
        """[requests, nextn] float32, many of them equal, some too small to count."""
        rng = random.Random(seed)
        nextn = self.world.nextn
        confidences = rng.choices([1.0, 0.9, 0.5, 1e-4], [4, 2, 2, 1], k=requests * nextn)
        return np.cumprod(np.array(confidences, np.float32).reshape(requests, nextn), axis=1, dtype=np.float32)

    # Steps

    def launch(self, plan: PlanRows | None) -> None:
        """The device runs the plan."""
        self.laws.check_schedule(plan)
        if plan is None:
            return
        previous = self.in_flight[-1].result if self.in_flight else None
        self.budget = self._choose_budget(plan)
        result = self.device.execute(plan, previous, self)
        self.in_flight.append(Launched(plan, result, self.budget is not None))
        self.summary.steps += 1
        self.laws.check_launch(plan, result)
        self._check_state()

    def land(self) -> None:
        """The oldest step in flight comes back, or fails, as the seed says."""
        step_id = self.in_flight[0].plan.step_id
        self.finish(fails=chance(self.world.seed, "discard", step_id, self.world.discard))

    def finish(self, fails: bool) -> None:
        """Commit or discard the oldest step in flight; rows of dead requests have written until now."""
        launched = self.in_flight[0]
        zombies = set(self.laws.ledger.zombies(launched.plan))
        for index in zombies:
            self.device.scribble(launched.plan, index, launched.result)
        self.summary.zombies += len(zombies)
        if fails:
            self._discard(launched)
        else:
            self._commit(launched, zombies)
        del self.in_flight[0]
        self.laws.ledger.land()
        self._check_state()

    def _discard(self, launched: Launched) -> None:
        self.pair.discard(launched.plan)
        self.laws.ledger.end_lives()
        self.device.poison_all()
        self.summary.discarded += 1

    def _commit(self, launched: Launched, zombies: set[int]) -> None:
        plan, result = launched.plan, launched.result
        tokens = list(result.tokens)
        finished = [False] * len(tokens)
        for index in set(range(len(tokens))) - zombies:
            tokens[index], finished[index] = self._truncate(self.live[plan.request_ids[index]], tokens[index])
        appended = self.pair.commit(plan, tokens, finished, result.drafts)
        self.laws.check_commit(launched, tokens, appended, zombies)
        for index, request_id in enumerate(plan.request_ids):
            if index not in zombies:
                known = self.live[request_id]
                self._receive(known, tokens[index], finished[index])
                if tokens[index] and request_id in self.live and len(self.in_flight) == 1:
                    self.laws.check_flushed(known, result.ends[index])

    def _receive(self, known: Live, new: list[int], finished: bool) -> None:
        """New tokens of a live request, and its end."""
        known.output += new
        self.summary.tokens += len(new)
        self.laws.check_text(known, new)
        if finished or len(known.prompt) + len(known.output) >= known.limit:
            del self.live[known.arrival.request_id]
            self.summary.finished += 1

    def _check_state(self) -> None:
        """All laws, then poison what nobody may read any more."""
        self.laws.check_state()
        in_use = self.laws.ledger.pages_in_use()
        for page in self._in_use - in_use:
            self.device.poison_page(page)
        self._in_use = in_use

    def _truncate(self, known: Live, new: list[int]) -> tuple[list[int], bool]:
        """What the host keeps of a request's new tokens, and whether the request ends with them."""
        if STOP_TOKEN in new:
            return new[: new.index(STOP_TOKEN) + 1], True
        fails = known.arrival.fails_after
        if new and fails and len(known.output) + len(new) >= fails:
            return [], True
        return new, False


def chance(seed: int, what: str, number: int, share: float) -> bool:
    """Whether something happens: a function of the seed and the number of the step, not of what came before."""
    return share > 0.0 and random.Random(f"{seed} {what} {number}").random() < share
