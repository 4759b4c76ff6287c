"""What a scheduler knows at a moment: limits, pools, queues and steps in flight, with the getters that show them.

Knows who holds what; decides nothing.
"""

from __future__ import annotations

from reference.scheduling.limits import Limits
from reference.scheduling.pool import Pool
from reference.scheduling.request import Request
from reference.scheduling.step_plan import StepPlan

DUMPED_REQUESTS = 64


class State:
    """Requests, pages, slots and steps of one rank.

    waiting, holders: requests without and with pages, oldest first; in_flight: steps not committed, oldest first;
    steps: how many were launched.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.page_pool = Pool("pages", limits.num_pages)
        self.slot_pool = Pool("slots", limits.num_slots)
        self.waiting: list[Request] = []
        self.holders: list[Request] = []
        self.in_flight: list[StepPlan] = []
        self.steps = 0
        self.num_preemptions = 0

    @property
    def num_usable_pages(self) -> int:
        """Pages without page 0."""
        return self.page_pool.usable

    @property
    def num_free_pages(self) -> int:
        """Pages that can be handed out now."""
        return len(self.page_pool.free)

    @property
    def num_deferred_pages(self) -> int:
        """Pages that wait for a step in flight."""
        return self.page_pool.pending

    @property
    def num_usable_slots(self) -> int:
        """Slots without slot 0."""
        return self.slot_pool.usable

    @property
    def num_free_slots(self) -> int:
        """Slots that can be handed out now."""
        return len(self.slot_pool.free)

    @property
    def num_deferred_slots(self) -> int:
        """Slots that wait for a step in flight."""
        return self.slot_pool.pending

    @property
    def num_waiting(self) -> int:
        """Requests without pages."""
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        """Requests with pages, prefilling ones included."""
        return len(self.holders)

    @property
    def num_in_flight(self) -> int:
        """Steps scheduled and not committed."""
        return len(self.in_flight)

    def has_work(self) -> bool:
        """True while a request is live or a step is not committed."""
        return bool(self.waiting or self.holders or self.in_flight)

    def request_ids(self) -> list[int]:
        """Live requests, oldest first."""
        return [request.request_id for request in self.holders + self.waiting]

    def state(self, request_id: int) -> str:
        """`waiting`, `prefill` or `running`. Raises ValueError for an id that is not live; so do the four below."""
        return self.live(request_id).state

    def pages(self, request_id: int) -> list[int]:
        """Pages in order of position."""
        return list(self.live(request_id).pages)

    def slot(self, request_id: int) -> int:
        """State slot, 0 for none."""
        return self.live(request_id).slot

    def tokens(self, request_id: int) -> list[int]:
        """Prompt and committed output."""
        return list(self.live(request_id).tokens)

    def num_computed(self, request_id: int) -> int:
        """Positions whose KV is in the pages, as far as commits have told."""
        return self.live(request_id).computed

    def check_integrity(self) -> None:
        """Every page and slot is in exactly one place, counts agree. Raises RuntimeError with both sides."""
        self.page_pool.check_conservation([page for request in self.holders for page in request.pages])
        self.slot_pool.check_conservation([request.slot for request in self.holders])
        for request in self.waiting:
            if request.pages or request.slot:
                raise RuntimeError(
                    f"request {request.request_id} waits with pages {request.pages}, slot {request.slot}"
                )
        if len(self.holders) > self.limits.max_num_seqs:
            raise RuntimeError(f"{len(self.holders)} requests hold pages, max_num_seqs is {self.limits.max_num_seqs}")

    def dump(self) -> str:
        """State for a watchdog: pools, queues, steps in flight, one line a request."""
        lines = [
            f"pages: {self.num_free_pages} free, {self.num_deferred_pages} deferred of {self.num_usable_pages}",
            f"slots: {self.num_free_slots} free, {self.num_deferred_slots} deferred of {self.num_usable_slots}",
            f"{self.num_running} running, {self.num_waiting} waiting, steps in flight "
            f"{[plan.step_id for plan in self.in_flight]}",
        ]
        for request in (self.holders + self.waiting)[:DUMPED_REQUESTS]:
            need = self.limits.pages_for(min(request.longest, request.limit))
            lines.append(
                f"request {request.request_id}: {request.state}, {len(request.tokens)} of {request.limit} tokens, "
                f"{request.computed} computed, slot {request.slot}, {len(request.pages)} pages held, {need} needed"
            )
        return "\n".join(lines)

    def find(self, request_id: int) -> Request | None:
        """The live request of that id."""
        return next((r for r in self.holders + self.waiting if r.request_id == request_id), None)

    def live(self, request_id: int) -> Request:
        """The same. Raises ValueError when there is none."""
        request = self.find(request_id)
        if request is None:
            raise ValueError(f"request_id {request_id} is not live")
        return request
