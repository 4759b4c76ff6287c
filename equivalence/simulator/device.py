"""The simulated device: pages, slots with their rings, and the execution of step plans against them.

Knows plans and the model; knows nothing about queues, requests' texts or why a step was planned. What the host cannot
know yet (tokens, accepted drafts of the step in flight) is read here, from the results of that step, and so drafts that
turn out to be beyond the last length of their request are dropped here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from equivalence.simulator.model import ENTRIES, POISON, next_token
from equivalence.simulator.plan_rows import PlanRows


class Host(Protocol):
    """What comes with a plan."""

    def limit(self, request_id: int) -> int:
        """Most tokens of the request's sequence."""

    def prefill_len(self, request_id: int) -> int:
        """Positions that the request's prefill steps compute."""

    def draft(self, request_id: int, length: int) -> list[int]:
        """Drafts of the tokens that follow the request's first `length` ones."""

    def choose_lengths(self, most: list[int]) -> list[int]:
        """[R] how many drafts a decode step verifies of each request, at most what each has."""


@dataclass
class StepResult:
    """What a step gives, by index of the request in the plan.

    rows: how many the plan gave it; inputs: true first position and true tokens of the rows that were computed; tokens:
    accepted and sampled ids, none for a chunk that samples nothing; drafts: for the next step; ends: true length of the
    sequence afterwards, the last token included.
    """

    rows: list[int] = field(default_factory=list)
    inputs: list[tuple[int, list[int]]] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    drafts: list[list[int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class Device:
    """Memory of one rank. Every entry that no live request wrote is poison."""

    def __init__(self, num_pages: int, page_size: int, num_slots: int, window: int, nextn: int) -> None:
        self.page_size = page_size
        self.window = window
        self.ring_size = window + nextn + 1
        self.pages = [[POISON] * page_size for _ in range(num_pages)]
        self.rings = [[POISON] * self.ring_size for _ in range(num_slots)]

    def poison_page(self, page: int) -> None:
        """Nobody may read this page any more."""
        self.pages[page] = [POISON] * self.page_size

    def poison_all(self) -> None:
        """A failing step leaves nothing that can be trusted."""
        for page in range(len(self.pages)):
            self.poison_page(page)
        self.rings = [[POISON] * self.ring_size for _ in self.rings]

    def execute(self, plan: PlanRows, previous: StepResult | None, host: Host) -> StepResult:
        """Run every row of a plan. previous: results of the step in flight, for requests with previous_rows >= 0."""
        result = StepResult()
        result.inputs = [self._inputs(plan, index, previous) for index in range(len(plan.request_ids))]
        if plan.kind == "decode":
            self._drop_drafts(plan, result, host)
        for index, (start, tokens) in enumerate(result.inputs):
            key = plan.request_ids[index]
            if plan.fresh[index]:
                self.rings[plan.slots[index]] = [0] * self.ring_size
            new: list[int] = []
            is_partial = False
            if plan.kind == "decode":
                new = self._verify(plan, index, start, tokens)
                end = start + 1 + len(new)
            else:
                self._write(plan, index, start, tokens)
                if plan.sample_rows[index] >= 0:
                    new = [self._sample(plan, index, start + len(tokens) - 1)]
                is_partial = plan.kv_lens[index] < host.prefill_len(key)
                end = plan.kv_lens[index] + (0 if is_partial else 1)  # with the token just sampled, or its last one
            result.rows.append(plan.query_start[index + 1] - plan.query_start[index])
            result.tokens.append(new)
            result.ends.append(end)
            result.drafts.append([] if is_partial else host.draft(key, end))
        return result

    def scribble(self, plan: PlanRows, index: int, result: StepResult) -> None:
        """The late writes of a dead request's rows: they may land at any moment before their step is committed."""
        table = plan.page_table[index]
        start, tokens = result.inputs[index]
        for position in range(start, start + len(tokens)):
            self.pages[table[position // self.page_size]][position % self.page_size] = POISON
        self.rings[plan.slots[index]] = [POISON] * self.ring_size

    def _drop_drafts(self, plan: PlanRows, result: StepResult, host: Host) -> None:
        """Drafts that could take a request past its limit, then those that the step does not verify."""
        most = []
        for key, (start, tokens) in zip(plan.request_ids, result.inputs, strict=True):
            room = host.limit(key) - (start + 1) - 1
            most.append(max(0, min(len(tokens) - 1, room)))
        for index, length in enumerate(host.choose_lengths(most)):
            start, tokens = result.inputs[index]
            result.inputs[index] = (start, tokens[: 1 + length])

    def _inputs(self, plan: PlanRows, index: int, previous: StepResult | None) -> tuple[int, list[int]]:
        """True first position and true tokens of a request's rows: the host assumed that all drafts are accepted."""
        begin, end = plan.query_start[index], plan.query_start[index + 1]
        tokens = plan.tokens[begin:end]
        row = plan.previous_rows[index]
        if row < 0:
            return plan.positions[begin], tokens
        if previous is None:
            raise RuntimeError(f"step {plan.step_id} refers to row {row} of a step in flight, and there is none")
        known = [*previous.tokens[row][-1:], *previous.drafts[row]]
        rejected = previous.rows[row] - len(previous.tokens[row])
        return plan.positions[begin] - rejected, known[: len(tokens)]

    def _write(self, plan: PlanRows, index: int, start: int, tokens: list[int]) -> None:
        table, size, ring = plan.page_table[index], self.page_size, self.rings[plan.slots[index]]
        for position, token in enumerate(tokens, start):
            entry = ENTRIES[token][position]
            self.pages[table[position // size]][position % size] = entry
            ring[position % self.ring_size] = entry

    def _sample(self, plan: PlanRows, index: int, position: int) -> int:
        """The token after `position`, from everything the request sees there."""
        table, size, ring = plan.page_table[index], self.page_size, self.rings[plan.slots[index]]
        full, rest = divmod(position + 1, size)
        seen = sum([sum(self.pages[page]) for page in table[:full]])
        if rest:
            seen += sum(self.pages[table[full]][:rest])
        first = max(0, position + 1 - self.window)
        recent = sum([ring[at % self.ring_size] for at in range(first, position + 1)])
        return next_token(seen, recent, plan.replay_starts[index])

    def _verify(self, plan: PlanRows, index: int, start: int, tokens: list[int]) -> list[int]:
        """All rows are written, then accepted from the left while each draft is what the row before it says."""
        self._write(plan, index, start, tokens)
        new = []
        for offset in range(len(tokens)):
            new.append(self._sample(plan, index, start + offset))
            if offset + 1 < len(tokens) and tokens[offset + 1] != new[-1]:
                break
        return new
