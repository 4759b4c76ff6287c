"""The simulated device: pages, slots with their rings, and the execution of step plans against them.

Knows plans and the model; knows nothing about queues, requests' texts or why a step was planned. What the host cannot
know yet (tokens, accepted drafts of the step in flight) is read here, from the results of that step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from equivalence.simulator.model import ENTRIES, POISON, next_token
from equivalence.simulator.plan_rows import PlanRows

Drafter = Callable[[int, int], list[int]]
"""(request_id, position of the next token) -> drafts of the tokens after it."""


@dataclass
class StepResult:
    """What a step gives, by index of the request in the plan.

    rows: how many it had; tokens: accepted and sampled ids, none for a chunk that is not the last; drafts: for the next
    step; ends: true length of the sequence afterwards, the last token included.
    """

    rows: list[int] = field(default_factory=list)
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

    def execute(self, plan: PlanRows, previous: StepResult | None, drafter: Drafter) -> StepResult:
        """Run every row of a plan. previous: results of the step in flight, for requests with previous_rows >= 0."""
        result = StepResult()
        for index in range(len(plan.request_ids)):
            start, tokens = self._inputs(plan, index, previous)
            if plan.fresh[index]:
                self.rings[plan.slots[index]] = [0] * self.ring_size
            new: list[int] = []
            if plan.kind == "prefill":
                self._write(plan, index, start, tokens)
                if plan.sample_rows[index] >= 0:
                    new = [self._sample(plan, index, start + len(tokens) - 1)]
            else:
                new = self._verify(plan, index, start, tokens)
            end = start + len(tokens) if plan.kind == "prefill" else start + 1
            result.rows.append(plan.query_start[index + 1] - plan.query_start[index])
            result.tokens.append(new)
            result.ends.append(end + len(new))
            result.drafts.append(drafter(plan.request_ids[index], end + len(new)) if new else [])
        return result

    def scribble(self, plan: PlanRows, index: int) -> None:
        """The late writes of a dead request's rows: they may land at any moment before their step is committed."""
        table = plan.page_table[index]
        for position in range(plan.positions[plan.query_start[index]], plan.kv_lens[index]):
            self.pages[table[position // self.page_size]][position % self.page_size] = POISON
        self.rings[plan.slots[index]] = [POISON] * self.ring_size

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
