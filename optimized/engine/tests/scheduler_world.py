"""A world for scheduler tests: memory of real pages and slots, and a model that is a hash of what a request sees there.

A wrong page, a stale slot or a lost row becomes a wrong token. Knows nothing about the scheduler's policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optimized._core import Admission, Scheduler, StepPlan

VOCAB = 1009
POISON = -7


def next_token(context: list[int] | np.ndarray) -> int:
    """The token that follows `context`: any function of all of it will do."""
    value = 17
    for position, token in enumerate(context):
        value = (value * 31 + int(token) * (position + 1)) % 1_000_003
    return value % VOCAB


def lone_run(prompt: list[int], max_tokens: int) -> list[int]:
    """What the request must generate, whatever runs beside it."""
    context = list(prompt)
    for _ in range(max_tokens):
        context.append(next_token(context))
    return context[len(prompt) :]


@dataclass
class Launched:
    """A plan and, for each of its requests, the tokens that it yields."""

    plan: StepPlan
    tokens: list[list[int]]


@dataclass
class World:
    """A scheduler, the memory that its plans address, and what every request has generated so far.

    After each settled decode step, `drafter(request_id, context) -> tokens` may hand the request drafts to verify.
    """

    scheduler: Scheduler
    memory: np.ndarray  # [pages, page_size] tokens
    states: np.ndarray  # [slots] tokens that the slot's owner has computed
    max_in_flight: int
    max_model_len: int
    limits: dict[int, int] = field(default_factory=dict)
    prompts: dict[int, list[int]] = field(default_factory=dict)
    outputs: dict[int, list[int]] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    in_flight: list[Launched] = field(default_factory=list)

    @classmethod
    def make(cls, num_pages: int = 33, page_size: int = 4, num_slots: int = 9, **options: Any) -> World:
        """Small pools unless told otherwise; `options` go to Scheduler."""
        settings: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 96} | options
        return cls(
            Scheduler(num_pages, page_size, num_slots, **settings),
            np.full((num_pages, page_size), POISON, dtype=np.int64),
            np.full(num_slots, POISON, dtype=np.int64),
            int(options.get("max_in_flight", 1)),
            int(settings["max_model_len"]),
        )

    def add(self, request_id: int, prompt: list[int], max_tokens: int, replay_start: int = 0) -> Admission:
        verdict = self.scheduler.add(request_id, np.array(prompt, dtype=np.int64), max_tokens, replay_start)
        if verdict is Admission.OK:
            self.limits[request_id] = min(len(prompt) + max_tokens, self.max_model_len)
            self.prompts[request_id] = prompt
            self.outputs[request_id] = []
        return verdict

    def drafter(self, request_id: int, context: list[int]) -> list[int]:
        """No drafts; tests replace it."""
        return []

    def launch(self) -> StepPlan | None:
        """Schedule one step and run it: memory changes now, the tokens wait for settle."""
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if plan is not None:
            self._check_fences(plan)
            self.plans.append(plan)
            self.in_flight.append(Launched(plan, self._run(plan)))
        return plan

    def settle(self, finished: frozenset[int] = frozenset()) -> list[int]:
        """Commit the oldest step in flight with the tokens it has sampled; returns how many each request took."""
        step = self.in_flight.pop(0)
        ids = step.plan.request_ids.tolist()
        results = list(zip(ids, step.tokens, strict=True))
        drafts = [self.drafter(i, self.context(i) + new) for i, new in results]
        appended = self.scheduler.commit(
            step.plan.step_id,
            step.plan.request_ids,
            np.array([token for new in step.tokens for token in new], dtype=np.int64),
            np.array([len(new) for new in step.tokens], dtype=np.int32),
            np.array([i in finished for i in ids], dtype=np.bool_),
            np.array([token for some in drafts for token in some], dtype=np.int64),
            np.array([len(some) for some in drafts], dtype=np.int32),
        )
        for (i, new), count in zip(results, appended.tolist(), strict=True):
            assert count in (0, len(new))
            self.outputs[i] += new[:count]
        self.scheduler.check_integrity()
        return appended.tolist()

    @property
    def page_size(self) -> int:
        return self.memory.shape[1]

    def context(self, request_id: int) -> list[int]:
        return self.prompts[request_id] + self.outputs[request_id]

    def step(self) -> StepPlan:
        """One synchronous step."""
        plan = self.launch()
        assert plan is not None
        self.settle()
        return plan

    def turn(self) -> None:
        """Launch one step, or settle one if as many as allowed are in flight or none can start before that."""
        if len(self.in_flight) == self.max_in_flight or self.launch() is None:
            self.settle()

    def run(self, most_turns: int = 10_000) -> None:
        """Until nothing is left, with as many steps in flight as the scheduler takes."""
        for _ in range(most_turns):
            if not self.scheduler.has_work():
                assert self.is_empty()
                return
            self.turn()
        raise AssertionError("no end in sight\n" + self.scheduler.dump())

    def is_empty(self) -> bool:
        """Nothing is held by anyone."""
        scheduler = self.scheduler
        pages = scheduler.num_free_pages == scheduler.num_usable_pages and scheduler.num_deferred_pages == 0
        return pages and scheduler.num_free_slots == scheduler.num_usable_slots and scheduler.num_deferred_slots == 0

    def _check_fences(self, plan: StepPlan) -> None:
        for step in self.in_flight:
            for r, request_id in enumerate(plan.request_ids):
                others = step.plan.request_ids != request_id
                held = set(step.plan.page_table[others].flat) - {0}
                assert held.isdisjoint(plan.page_table[r].tolist()), "a page of a step in flight has a new owner"
                assert plan.slots[r] not in step.plan.slots[others], "a slot of a step in flight has a new owner"

    def _run(self, plan: StepPlan) -> list[list[int]]:
        return [self._run_request(plan, r) for r in range(plan.num_requests)]

    def _run_request(self, plan: StepPlan, r: int) -> list[int]:
        rows = slice(int(plan.query_start[r]), int(plan.query_start[r + 1]))
        tokens, positions = plan.tokens[rows].copy(), plan.positions[rows]
        assert plan.kv_lens[r] == positions[-1] + 1
        if plan.previous_rows[r] >= 0:  # the device knows what the step before has accepted
            before, index = self.in_flight[-1], int(plan.previous_rows[r])
            assert before.plan.request_ids[index] == plan.request_ids[r]
            new = before.tokens[index]
            drafts = self.drafter(int(plan.request_ids[r]), self.context(int(plan.request_ids[r])) + new)
            tokens[:] = [new[-1], *drafts, *[0] * len(tokens)][: len(tokens)]
            positions = positions - (int(np.diff(before.plan.query_start)[index]) - len(before.tokens[index]))
        if plan.kind == "decode":  # drafts planned for a shorter sequence than this has turned out to be
            most = max(0, self.limits[int(plan.request_ids[r])] - (int(positions[0]) + 1) - 1)
            tokens, positions = tokens[: 1 + most], positions[: 1 + most]
        slot, first, length = int(plan.slots[r]), int(positions[0]), int(positions[-1]) + 1
        assert (tokens >= 0).all()
        assert plan.fresh[r] == (first == 0)
        assert plan.fresh[r] or self.states[slot] == first, "the slot does not hold this request's state"
        pages = plan.page_table[r, positions // self.page_size]
        assert (pages > 0).all(), "a row without a page"
        self.memory[pages, positions % self.page_size] = tokens
        new = []
        if plan.sample_rows[r] >= 0:
            start = 0 if plan.kind == "decode" else len(tokens) - 1
            assert plan.sample_rows[r] == rows.start + start
            new.append(next_token(self._visible(plan, r, int(positions[start]) + 1)))
            for draft in range(start + 1, len(tokens)):
                if tokens[draft] != new[-1]:
                    break
                new.append(next_token(self._visible(plan, r, int(positions[draft]) + 1)))
        self.states[slot] = length if plan.kind == "prefill" else first + len(new)
        return new

    def _visible(self, plan: StepPlan, r: int, length: int) -> np.ndarray:
        """[length] what the pages hold at the request's positions."""
        positions = np.arange(length)
        return self.memory[plan.page_table[r, positions // self.page_size], positions % self.page_size]
