"""The scheduler of one rank, in plain Python: which request runs next, in which pages and state slot.

Written from the serving specification, section 6, and the stub of `optimized._core`; shares no line with the C++ core.
Knows token ids, lengths and step results; knows nothing about tensors, text, sampling, clocks or processes.
"""

from __future__ import annotations

from reference.scheduling.pool import Admission, Pool
from reference.scheduling.request import Request
from reference.scheduling.step_plan import StepPlan

DUMPED_REQUESTS = 64

UNKNOWN_TOKEN = -1


class Scheduler:
    """Requests, pages, state slots and step plans of one rank; same policy and surface as the C++ core."""

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_slots: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        nextn: int = 0,
        chunk_grid: int = 1,
        *,
        max_consecutive_prefills: int = 8,
        max_cache_usage: float = 0.9,
        max_in_flight: int = 1,
    ) -> None:
        """
        Args:
            num_pages, num_slots: with the reserved number 0; at least 2.
            page_size: tokens a page, at least nextn + 1.
            max_num_seqs: most requests that hold pages at one time.
            max_num_batched_tokens: most rows a step.
            max_model_len: most tokens of a sequence.
            nextn: most drafts a decode step verifies.
            chunk_grid: a prefill chunk that is not the last ends at a multiple of this.
            max_consecutive_prefills: prefill steps in a row while a decode is possible.
            max_cache_usage: nothing is admitted while used / usable pages is above this.
            max_in_flight: steps scheduled and not committed: 1 synchronous, 2 a lag of one step.
        Raises:
            ValueError: names the argument, its value and the law.
        """
        _check_at_least("num_pages", num_pages, 2)
        _check_at_least("nextn", nextn, 0)
        _check_at_least("page_size", page_size, nextn + 1)
        _check_at_least("num_slots", num_slots, 2)
        _check_at_least("max_num_seqs", max_num_seqs, 1)
        _check_at_least("chunk_grid", chunk_grid, 1)
        _check_at_least("max_num_batched_tokens", max_num_batched_tokens, max(max_num_seqs * (nextn + 1), chunk_grid))
        _check_at_least("max_model_len", max_model_len, 2)
        _check_at_least("max_consecutive_prefills", max_consecutive_prefills, 1)
        _check_at_least("max_in_flight", max_in_flight, 1)
        if not 0 < max_cache_usage <= 1:
            raise ValueError(f"max_cache_usage must be in (0, 1], not {max_cache_usage}")
        self.page_size = page_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.nextn = nextn
        self.chunk_grid = chunk_grid
        self.max_consecutive_prefills = max_consecutive_prefills
        self.max_cache_usage = max_cache_usage
        self.max_in_flight = max_in_flight
        self.page_pool = Pool("pages", num_pages)
        self.slot_pool = Pool("slots", num_slots)
        self.waiting: list[Request] = []  # oldest first
        self.holders: list[Request] = []  # requests with pages, oldest first
        self.in_flight: list[StepPlan] = []
        self.steps = 0
        self.prefills_in_a_row = 0
        self.num_preemptions = 0

    # Requests

    def add(self, request_id: int, prompt: list[int], max_tokens: int, replay_start: int = 0) -> Admission:
        """Queue a request: OK, or NEVER when it can never run. Raises ValueError for a bad argument."""
        if request_id < 0 or self._find(request_id) is not None:
            raise ValueError(f"request_id {request_id} is negative or in use")
        if not prompt or min(prompt) < 0:
            raise ValueError(f"request {request_id}: prompt must have at least one token, each >= 0")
        if max_tokens < 1:
            raise ValueError(f"request {request_id}: max_tokens must be at least 1, not {max_tokens}")
        if not 0 <= replay_start <= len(prompt):
            raise ValueError(f"request {request_id}: replay_start must be in 0 .. {len(prompt)}, not {replay_start}")
        if self.explain_never(len(prompt), max_tokens):
            return Admission.NEVER
        limit = min(len(prompt) + max_tokens, self.max_model_len)
        self.waiting.append(Request(request_id, list(prompt), len(prompt), limit, replay_start))
        return Admission.OK

    def lifetime_pages(self, prompt_len: int, max_tokens: int) -> int:
        """Pages that the request needs at its longest, with room for nextn + 1 tokens."""
        return self._pages_for(min(prompt_len + max_tokens, self.max_model_len))

    def explain_never(self, prompt_len: int, max_tokens: int) -> str:
        """Why such a request can never run; empty if it can."""
        if prompt_len >= self.max_model_len:
            return f"a prompt of {prompt_len} tokens leaves no room in max_model_len {self.max_model_len}"
        need = self.lifetime_pages(prompt_len, max_tokens)
        if self.page_pool.verdict(need) is Admission.NEVER:
            return f"needs {need} pages at its longest, and there are {self.page_pool.usable}"
        return ""

    def abort(self, request_id: int) -> bool:
        """End a request in any state, at once. False if no live request has this id."""
        request = self._find(request_id)
        if request is None:
            return False
        self._end(request)
        return True

    # Steps

    def schedule(self) -> StepPlan | None:
        """The next step; None when nothing may start before the oldest step in flight is committed, or nothing is live.

        Raises RuntimeError when max_in_flight steps are not committed, or in a stall.
        """
        if len(self.in_flight) >= self.max_in_flight:
            raise RuntimeError(f"{len(self.in_flight)} steps in flight, max_in_flight is {self.max_in_flight}")
        if any(step.kind == "prefill" for step in self.in_flight):
            return None
        plan = self._schedule_prefill() if self._is_prefill_next() else self._schedule_decode()
        if plan is None and not self.in_flight and (self.waiting or self.holders):
            raise RuntimeError("stall: nothing can run\n" + self.dump())
        return plan

    def commit(
        self,
        step_id: int,
        request_ids: list[int],
        tokens: list[int],
        counts: list[int],
        finished: list[bool],
        draft_tokens: list[int] | None = None,
        draft_counts: list[int] | None = None,
    ) -> list[int]:
        """Take the result of the oldest step in flight. Returns the tokens appended to each request.

        Raises ValueError naming the argument; then nothing was changed.
        """
        plan = self._oldest_in_flight(step_id)
        drafts = self._check_result(plan, request_ids, tokens, counts, finished, draft_tokens, draft_counts)
        del self.in_flight[0]
        appended = []
        begin = 0
        for index, request in enumerate(plan.requests):
            new = tokens[begin : begin + counts[index]]
            begin += counts[index]
            if request.life != plan.lives[index]:
                appended.append(0)
                continue
            appended.append(len(new))
            request.promised.pop(step_id, None)
            self._advance(plan, index, new, drafts[index])
            if finished[index] or len(request.tokens) >= request.limit:
                self._end(request)
        self._settle(step_id)
        return appended

    def discard(self, step_id: int) -> None:
        """The oldest step in flight failed, no page or slot can be trusted: all are computed again from position 0."""
        self._oldest_in_flight(step_id)
        del self.in_flight[0]
        for request in list(reversed(self.holders)):
            self._send_back(request)
        self._settle(step_id)

    # What the statistics show

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
        return self._live(request_id).state

    def pages(self, request_id: int) -> list[int]:
        """Pages in order of position."""
        return list(self._live(request_id).pages)

    def slot(self, request_id: int) -> int:
        """State slot, 0 for none."""
        return self._live(request_id).slot

    def tokens(self, request_id: int) -> list[int]:
        """Prompt and committed output."""
        return list(self._live(request_id).tokens)

    def num_computed(self, request_id: int) -> int:
        """Positions whose KV is in the pages, as far as commits have told."""
        return self._live(request_id).computed

    def check_integrity(self) -> None:
        """Every page and slot is in exactly one place, counts agree. Raises RuntimeError with both sides."""
        self.page_pool.check_conservation([page for request in self.holders for page in request.pages])
        self.slot_pool.check_conservation([request.slot for request in self.holders])
        for request in self.waiting:
            if request.pages or request.slot:
                raise RuntimeError(f"request {request.request_id} waits with pages {request.pages}, slot {request.slot}")
        if len(self.holders) > self.max_num_seqs:
            raise RuntimeError(f"{len(self.holders)} requests hold pages, max_num_seqs is {self.max_num_seqs}")

    def dump(self) -> str:
        """State for a watchdog: pools, queues, steps in flight, one line a request."""
        lines = [
            f"pages: {self.num_free_pages} free, {self.num_deferred_pages} deferred of {self.num_usable_pages}",
            f"slots: {self.num_free_slots} free, {self.num_deferred_slots} deferred of {self.num_usable_slots}",
            f"{self.num_running} running, {self.num_waiting} waiting, steps in flight "
            f"{[plan.step_id for plan in self.in_flight]}",
        ]
        for request in (self.holders + self.waiting)[:DUMPED_REQUESTS]:
            need = self._pages_for(request.longest)
            lines.append(
                f"request {request.request_id}: {request.state}, {len(request.tokens)} of {request.limit} tokens, "
                f"{request.computed} computed, slot {request.slot}, {len(request.pages)} pages held, {need} needed"
            )
        return "\n".join(lines)

    # Choosing the kind of step

    def _is_prefill_next(self) -> bool:
        can_prefill = self._partial() is not None or (bool(self.waiting) and self._is_admissible(self.waiting[0]))
        had_enough = self.prefills_in_a_row >= self.max_consecutive_prefills
        return can_prefill and not (had_enough and self._decodable())

    def _is_admissible(self, request: Request) -> bool:
        """Whether a waiting request can have its pages and its slot now, with a page to spare for each that runs."""
        if self.holders and self.page_pool.used > self.max_cache_usage * self.page_pool.usable:
            return False
        if len(self.holders) >= self.max_num_seqs or self.slot_pool.verdict(1) is not Admission.OK:
            return False
        need = self._pages_for(len(request.tokens)) + len(self.holders)
        return self.page_pool.verdict(need) is Admission.OK

    def _partial(self) -> Request | None:
        """The request whose prompt is not computed to its end."""
        return next((request for request in self.holders if request.state == "prefill"), None)

    def _decodable(self) -> list[Request]:
        """Requests that live on even if each step in flight adds one token only, oldest first."""
        return [r for r in self.holders if r.state == "running" and r.shortest < r.limit]

    # Prefill

    def _schedule_prefill(self) -> StepPlan | None:
        """Chunks of the partial request, then of the waiting ones, up to the budget of rows."""
        if self.in_flight:
            return None
        self.prefills_in_a_row += 1
        plan = self._new_plan("prefill")
        budget = self.max_num_batched_tokens
        partial = self._partial()
        if partial is not None:
            budget -= self._prefill_rows(plan, partial, budget)
        while self.waiting and self._is_last_complete(plan) and self._is_admissible(self.waiting[0]):
            request = self.waiting[0]
            if self._chunk(request, budget) == 0:
                break
            self._admit(request)
            budget -= self._prefill_rows(plan, request, budget)
        return self._launch(plan)

    def _is_last_complete(self, plan: StepPlan) -> bool:
        """Whether the plan has no chunk that leaves its prompt unfinished."""
        return not plan.sample_rows or plan.sample_rows[-1] >= 0

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.holders.append(request)
        request.state = "prefill"
        request.pages = self.page_pool.take(self._pages_for(len(request.tokens)))
        request.slot = self.slot_pool.take(1)[0]
        request.fresh = True

    def _chunk(self, request: Request, budget: int) -> int:
        """How many tokens of the request fit: all that are left, or up to a point of the grid."""
        left = len(request.tokens) - request.computed
        if left <= budget:
            return left
        end = (request.computed + budget) // self.chunk_grid * self.chunk_grid
        return max(0, end - request.computed)

    def _prefill_rows(self, plan: StepPlan, request: Request, budget: int) -> int:
        """Add the request's next chunk to the plan. Returns its rows."""
        rows = self._chunk(request, budget)
        start, end = request.computed, request.computed + rows
        is_last = end == len(request.tokens)
        plan.append(request, start, request.tokens[start:end], is_last, previous_row=-1)
        request.promised[plan.step_id] = 1 if is_last else 0
        request.fresh = False
        return rows

    # Decode

    def _schedule_decode(self) -> StepPlan | None:
        """One row and the drafts of every request that can have its pages."""
        plan = self._new_plan("decode")
        for request in self._decodable():
            if request in self.holders and self._find_room(plan, request):
                self._decode_rows(plan, request)
        if not plan.request_ids:
            return None
        self.prefills_in_a_row = 0
        return self._launch(plan)

    def _find_room(self, plan: StepPlan, request: Request) -> bool:
        """Give the request pages for its rows, preempting the most recently admitted requests if there are none.

        False: it waits for pages behind a fence, which no younger request may take before it, or was itself the most
        recently admitted and is preempted.
        """
        missing = self._pages_for(request.longest - 1) - len(request.pages)
        if missing <= 0:
            return True
        need = plan.owed_pages + missing
        while need > len(self.page_pool.free) + self.page_pool.pending:
            youngest = self.holders[-1]
            if youngest is self.holders[0]:
                raise RuntimeError(f"request {request.request_id} is alone and short of pages\n{self.dump()}")
            self._send_back(youngest)
            self.num_preemptions += 1
            if youngest is request:
                return False
        if need > len(self.page_pool.free):
            plan.owed_pages = need
            return False
        request.pages += self.page_pool.take(missing)
        return True

    def _decode_rows(self, plan: StepPlan, request: Request) -> None:
        """Add the request's last token and its drafts to the plan; no draft may take it past its limit."""
        start = request.longest - 1
        room = max(0, request.limit - request.longest - 1)
        if request.promised:
            drafts = min(self.nextn, room)
            plan.append(request, start, [UNKNOWN_TOKEN] * (1 + drafts), True, self._previous_row(request))
        else:
            plan.append(request, start, [request.tokens[-1], *request.drafts[:room]], True, previous_row=-1)
        request.drafts = []
        request.promised[plan.step_id] = plan.rows_of(plan.num_requests - 1)

    def _previous_row(self, request: Request) -> int:
        return self.in_flight[-1].requests.index(request)

    # Results

    def _advance(self, plan: StepPlan, index: int, new: list[int], drafts: list[int]) -> None:
        """Append what a live row gave."""
        request = plan.requests[index]
        request.tokens += new
        if plan.kind == "prefill":
            request.computed = plan.kv_lens[index]
            request.state = "running" if plan.sample_rows[index] >= 0 else "prefill"
        else:
            request.computed += len(new)
        request.drafts = drafts

    def _end(self, request: Request) -> None:
        """Release a request for good."""
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self._release(request)
        request.forget_progress()

    def _send_back(self, request: Request) -> None:
        """Release a request and put it before all that wait; tokens are kept."""
        self._release(request)
        request.forget_progress()
        self.waiting.insert(0, request)

    def _release(self, request: Request) -> None:
        """Give pages and slot back, behind the newest step in flight if one may touch them."""
        may_touch = any(request in plan.requests for plan in self.in_flight)
        fence = self.in_flight[-1].step_id if may_touch else 0
        self.page_pool.give_back(request.pages, fence)
        self.slot_pool.give_back([request.slot], fence)
        self.holders.remove(request)

    def _settle(self, step_id: int) -> None:
        self.page_pool.settle(step_id)
        self.slot_pool.settle(step_id)

    def _check_result(
        self,
        plan: StepPlan,
        request_ids: list[int],
        tokens: list[int],
        counts: list[int],
        finished: list[bool],
        draft_tokens: list[int] | None,
        draft_counts: list[int] | None,
    ) -> list[list[int]]:
        """Check a result against its plan. Returns the drafts of each request."""
        if request_ids != plan.request_ids:
            raise ValueError(f"request_ids {request_ids} are not the plan's {plan.request_ids}")
        if len(counts) != plan.num_requests or len(finished) != plan.num_requests:
            raise ValueError(f"counts and finished must have {plan.num_requests} entries")
        if min(counts, default=0) < 0 or sum(counts) != len(tokens) or min(tokens, default=0) < 0:
            raise ValueError(f"counts add up to {sum(counts)}, tokens are {len(tokens)}, none may be negative")
        for index, request in enumerate(plan.requests):
            if request.life == plan.lives[index]:
                self._check_count(plan, index, counts[index], finished[index])
        if (draft_tokens is None) != (draft_counts is None):
            raise ValueError("draft_tokens and draft_counts go together")
        if draft_tokens is None or draft_counts is None:
            return [[] for _ in counts]
        if len(draft_counts) != plan.num_requests or sum(draft_counts) != len(draft_tokens):
            raise ValueError(f"draft_counts {draft_counts} do not fit {plan.num_requests} requests, {len(draft_tokens)} drafts")
        if not all(0 <= count <= self.nextn for count in draft_counts) or min(draft_tokens, default=0) < 0:
            raise ValueError(f"draft_counts {draft_counts} must be in 0 .. {self.nextn}, and no draft negative")
        ends = [sum(draft_counts[: index + 1]) for index in range(plan.num_requests)]
        return [draft_tokens[end - count : end] for end, count in zip(ends, draft_counts, strict=True)]

    def _check_count(self, plan: StepPlan, index: int, count: int, finished: bool) -> None:
        most = 0
        if plan.sample_rows[index] >= 0:
            most = plan.rows_of(index) if plan.kind == "decode" else 1
        least = 0 if finished else min(1, most)
        if not least <= count <= most:
            raise ValueError(f"request {plan.request_ids[index]}: {count} tokens, allowed {least} .. {most}")

    # Small helpers

    def _oldest_in_flight(self, step_id: int) -> StepPlan:
        if not self.in_flight or self.in_flight[0].step_id != step_id:
            raise ValueError(f"step {step_id} is not the oldest of {[plan.step_id for plan in self.in_flight]} in flight")
        return self.in_flight[0]

    def _new_plan(self, kind: str) -> StepPlan:
        return StepPlan(kind, self.steps + 1)

    def _launch(self, plan: StepPlan) -> StepPlan:
        plan.pad_page_table()
        self.steps = plan.step_id
        self.in_flight.append(plan)
        return plan

    def _pages_for(self, length: int) -> int:
        """Pages of a sequence of that many tokens, with room for nextn + 1 more."""
        return -(-(length + self.nextn + 1) // self.page_size)

    def _find(self, request_id: int) -> Request | None:
        return next((r for r in self.holders + self.waiting if r.request_id == request_id), None)

    def _live(self, request_id: int) -> Request:
        request = self._find(request_id)
        if request is None:
            raise ValueError(f"request_id {request_id} is not live")
        return request


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
