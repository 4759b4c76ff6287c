"""Runs one world: clock, arrivals, aborts, grammars, late and failing steps, and the device; the laws watch every step.

Knows the order of things; what a step must satisfy is in `laws.py`, what a step computes in `device.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from equivalence.simulator.device import Device, StepResult
from equivalence.simulator.laws import Laws
from equivalence.simulator.lockstep import Pair, Violation
from equivalence.simulator.model import STOP_TOKEN, LoneRun
from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.world import Arrival, World


@dataclass
class Live:
    """A request that the scheduler was given. output: its tokens so far; order: number of its arrival."""

    arrival: Arrival
    prompt: list[int]
    lone: LoneRun
    limit: int
    order: int
    output: list[int] = field(default_factory=list)


@dataclass
class Launched:
    """A step in flight, with what the device made of it."""

    plan: PlanRows
    result: StepResult


@dataclass
class Summary:
    """What happened in a world, for the report and to see that a world is worth its time."""

    steps: int = 0
    ticks: int = 0
    tokens: int = 0
    finished: int = 0
    aborted: int = 0
    refused: int = 0
    discarded: int = 0
    zombies: int = 0
    preemptions: int = 0


class Simulation:
    """One rank in one world. `run` takes it to its end; `tick` is one turn of the clock.

    with_reference: False leaves the core alone under the laws.
    """

    def __init__(self, world: World, with_reference: bool = True) -> None:
        self.world = world
        self.pair = Pair(world.limits(), with_reference)
        self.device = Device(world.num_pages, world.page_size, world.num_slots, world.window, world.nextn)
        self.now = 0
        self.summary = Summary()
        self.live: dict[int, Live] = {}
        self.in_flight: list[Launched] = []
        self.laws = Laws(self)
        self._coming = sorted(world.arrivals, key=lambda arrival: arrival.tick)
        self._next = 0
        self._compiling: list[tuple[int, Arrival]] = []
        self._aborts: dict[int, list[Arrival]] = {}
        self._order = 0
        self._in_use: set[int] = set()
        for arrival in world.arrivals:
            if arrival.abort_tick:
                self._aborts.setdefault(arrival.abort_tick, []).append(arrival)

    def run(self) -> Summary:
        """To the end: no arrival is left, nothing is live, everything is free. Raises Violation."""
        while not self.is_over():
            self.tick()
        self.laws.check_end()
        self.summary.ticks = self.now
        self.summary.preemptions = self.pair.core.num_preemptions
        return self.summary

    def is_over(self) -> bool:
        """Nothing will come and nothing is left."""
        return not (self._is_open() or self._compiling or self.pair.core.has_work())

    def _is_open(self) -> bool:
        """Whether more requests will come."""
        return self._next < len(self._coming) and self.summary.steps < self.world.steps

    def tick(self) -> None:
        """Arrivals and aborts; one step scheduled and executed; aborts in flight; one step committed."""
        if self._is_open() and not self._compiling and not self.pair.core.has_work():
            self.now = max(self.now, self._coming[self._next].tick)
        self._arrive()
        self._abort(in_flight=False)
        self._compile()
        if len(self.in_flight) == self.world.max_in_flight:
            self._finish_oldest()
        elif self.in_flight and self._chance("early", self.in_flight[0].plan.step_id, self.world.early):
            self._finish_oldest()
        launched = self._launch() if self.pair.core.has_work() else False
        self._abort(in_flight=True)
        if self.in_flight and not launched:
            self._finish_oldest()
        elif self.in_flight and self.world.max_in_flight == 1:
            self._wait_and_finish()
        self.now += 1
        self.laws.check_progress()

    # Actors

    def _arrive(self) -> None:
        while self._is_open() and self._coming[self._next].tick <= self.now:
            if len(self.live) + len(self._compiling) >= self.world.crowd:
                return
            arrival = self._coming[self._next]
            self._next += 1
            self._compiling.append((self.now + abs(arrival.compile_ticks), arrival))

    def _compile(self) -> None:
        """Grammars that are ready reach the scheduler; those that fail, or were aborted while compiling, never do."""
        still = []
        for due, arrival in self._compiling:
            if due > self.now:
                still.append((due, arrival))
            elif arrival.compile_ticks >= 0 and not 0 < arrival.abort_tick < self.now:
                self._add(arrival)
        self._compiling = still

    def _add(self, arrival: Arrival) -> None:
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
        self.live[arrival.request_id] = Live(arrival, prompt, lone, limit, self._order)
        self._order += 1

    def _abort(self, in_flight: bool) -> None:
        for arrival in self._aborts.get(self.now, ()):
            if arrival.abort_in_flight is not in_flight:
                continue
            known = self.live.get(arrival.request_id)
            was_live = self.pair.abort(arrival.request_id)
            if was_live != (known is not None):
                raise Violation("I20 abort", f"request {arrival.request_id}: abort says {was_live}, live {known}")
            if known is not None:
                del self.live[arrival.request_id]
                self.summary.aborted += 1
            self._check_state()

    # Steps

    def _launch(self) -> bool:
        plan = self.pair.schedule()
        self.laws.check_schedule(plan)
        if plan is None:
            return False
        previous = self.in_flight[-1].result if self.in_flight else None
        result = self.device.execute(plan, previous, self._draft)
        self.in_flight.append(Launched(plan, result))
        self.summary.steps += 1
        self.laws.check_launch(plan, result)
        self._check_state()
        return True

    def _wait_and_finish(self) -> None:
        """A synchronous step; a late one lets a few ticks of arrivals and aborts pass."""
        step_id = self.in_flight[0].plan.step_id
        if self._chance("late", step_id, self.world.late):
            for _ in range(1 + step_id % 3):
                self.now += 1
                self._arrive()
                self._compile()
                self._abort(in_flight=True)
                self._abort(in_flight=False)
        self._finish_oldest()

    def _finish_oldest(self) -> None:
        launched = self.in_flight[0]
        zombies = set(self.laws.ledger.zombies(launched.plan))
        for index in zombies:
            self.device.scribble(launched.plan, index)
        self.summary.zombies += len(zombies)
        if self._chance("discard", launched.plan.step_id, self.world.discard):
            self.pair.discard(launched.plan)
            self.laws.ledger.end_lives()
            self.device.poison_all()
            self.summary.discarded += 1
        else:
            self._commit(launched, zombies)
        del self.in_flight[0]
        self.laws.ledger.land()
        self._check_state()

    def _commit(self, launched: Launched, zombies: set[int]) -> None:
        plan, result = launched.plan, launched.result
        tokens = list(result.tokens)
        finished = [False] * len(tokens)
        for index in set(range(len(tokens))) - zombies:
            tokens[index], finished[index] = self._truncate(self.live[plan.request_ids[index]], tokens[index])
        appended = self.pair.commit(plan, tokens, finished, result.drafts)
        self.laws.check_commit(plan, tokens, appended, zombies)
        for index, request_id in enumerate(plan.request_ids):
            if index not in zombies:
                self._receive(self.live[request_id], tokens[index], finished[index])

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

    def _draft(self, request_id: int, position: int) -> list[int]:
        """Drafts of the tokens from `position` on; each is right with the world's chance."""
        known = self.live.get(request_id)
        if known is None or self.world.nextn == 0:
            return []
        rng = random.Random(self.world.seed ^ (request_id << 20) ^ position)
        count = rng.randint(0, self.world.nextn)
        drafts = []
        for at in range(position, min(position + count, self.world.max_model_len)):
            right = known.lone.token(at)
            drafts.append(right if rng.random() < self.world.acceptance else (right + 1) % 61)
        return drafts

    def _chance(self, what: str, step_id: int, share: float) -> bool:
        """Whether something happens at a step: a function of the seed and the step, not of what came before."""
        if share == 0.0:
            return False
        return random.Random(f"{self.world.seed} {what} {step_id}").random() < share
