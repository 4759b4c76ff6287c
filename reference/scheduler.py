"""The scheduler of one rank, in plain Python: which request runs next, in which pages and state slot.

Written from the serving specification, section 6, and the stub of `optimized._core`; shares no line with the C++ core.
Knows token ids, lengths and step results; knows nothing about tensors, text, sampling, clocks or processes.
"""

from __future__ import annotations

from reference.scheduling import step_kind
from reference.scheduling.limits import Limits
from reference.scheduling.pool import Admission
from reference.scheduling.request import Request
from reference.scheduling.state import State
from reference.scheduling.step_kind import Ballot, History, Reduce, Tally
from reference.scheduling.step_plan import StepPlan
from reference.scheduling.step_result import StepResult

UNKNOWN_TOKEN = -1


class Scheduler(State):
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
        prefill_all_interval: int = 1,
        prefill_any_interval: int = 1,
        max_wait_steps: int = 500,
        stall_limit: int = 10_000,
        reduce: Reduce | None = None,
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
            max_consecutive_prefills: after so many prefill steps in a row, decode if any rank can.
            max_cache_usage: nothing is admitted while used / usable pages is above this.
            max_in_flight: steps scheduled and not committed: 1 synchronous, 2 a lag of one step.
            prefill_all_interval, prefill_any_interval: decode steps between the votes.
            max_wait_steps: decode steps after which the head of the queue is overdue.
            stall_limit: calls of schedule without progress after which it raises.
            reduce: the minimum over all ranks; None: one rank.
        Raises:
            ValueError: names the argument, its value and the law.
        """
        limits = Limits(
            num_pages,
            page_size,
            num_slots,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            nextn,
            chunk_grid,
            max_consecutive_prefills,
            max_cache_usage,
            max_in_flight,
            prefill_all_interval,
            prefill_any_interval,
            max_wait_steps,
            stall_limit,
        )
        super().__init__(limits)
        self.reduce = reduce
        self.history = History()
        self.head_waited = 0  # decode steps that the head of the queue has waited
        self.idle_calls = 0  # calls of schedule without progress

    # Requests

    def add(self, request_id: int, prompt: list[int], max_tokens: int, replay_start: int = 0) -> Admission:
        """Queue a request: OK, or NEVER when it can never run. Raises ValueError for a bad argument."""
        if request_id < 0 or self.find(request_id) is not None:
            raise ValueError(f"request_id {request_id} is negative or in use")
        if not prompt or min(prompt) < 0:
            raise ValueError(f"request {request_id}: prompt must have at least one token, each >= 0")
        if max_tokens < 1:
            raise ValueError(f"request {request_id}: max_tokens must be at least 1, not {max_tokens}")
        if not 0 <= replay_start <= len(prompt):
            raise ValueError(f"request {request_id}: replay_start must be in 0 .. {len(prompt)}, not {replay_start}")
        if self.explain_never(len(prompt), max_tokens):
            return Admission.NEVER
        limit = min(len(prompt) + max_tokens, self.limits.max_model_len)
        self.waiting.append(Request(request_id, list(prompt), len(prompt), limit, replay_start))
        self.idle_calls = 0
        return Admission.OK

    def lifetime_pages(self, prompt_len: int, max_tokens: int) -> int:
        """Pages that the request needs at its longest, with room for nextn + 1 tokens."""
        return self.limits.pages_for(min(prompt_len + max_tokens, self.limits.max_model_len))

    def explain_never(self, prompt_len: int, max_tokens: int) -> str:
        """Why such a request can never run; empty if it can."""
        if prompt_len >= self.limits.max_model_len:
            return f"a prompt of {prompt_len} tokens leaves no room in max_model_len {self.limits.max_model_len}"
        need = self.lifetime_pages(prompt_len, max_tokens)
        if self.page_pool.verdict(need) is Admission.NEVER:
            return f"needs {need} pages at its longest, and there are {self.page_pool.usable}"
        return ""

    def abort(self, request_id: int) -> bool:
        """End a request in any state, at once. False if no live request has this id."""
        request = self.find(request_id)
        if request is None:
            return False
        self._end(request)
        self.idle_calls = 0
        return True

    # Steps

    def schedule(self) -> StepPlan | None:
        """The next step; None when nothing may start before the oldest step in flight is committed, or nothing is live.

        Raises RuntimeError when max_in_flight steps are not committed, or in a stall.
        """
        if len(self.in_flight) >= self.limits.max_in_flight:
            raise RuntimeError(f"{len(self.in_flight)} steps in flight, max_in_flight is {self.limits.max_in_flight}")
        if any(step.kind == "prefill" for step in self.in_flight):
            return None
        kind = self._agree_on_kind()
        self._watch(kind)
        if kind == "prefill":
            return self._schedule_prefill()
        return self._schedule_decode() if kind == "decode" else None

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
        no_drafts = [0] * plan.num_requests
        result = StepResult(request_ids, tokens, counts, finished, draft_tokens or [], draft_counts or no_drafts)
        result.check(plan, self.limits.nextn)
        del self.in_flight[0]
        if plan.request_ids:
            self.idle_calls = 0
        new_tokens, drafts = result.new_tokens(), result.drafts()
        appended = [0] * plan.num_requests
        for index, request in enumerate(plan.requests):
            if not plan.is_live(index):
                continue
            appended[index] = counts[index]
            request.promised.pop(step_id, None)
            self._advance(plan, index, new_tokens[index], drafts[index])
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

    # Choosing the kind of step

    def _agree_on_kind(self) -> str:
        """`prefill`, `decode`, `idle`, `stuck`, or `drain`: what is in flight comes first."""
        tally = Tally.of(self._minimum(self._ballot().numbers()))
        kind = step_kind.choose(tally, self.history, self.limits)
        if kind != "prefill":
            return kind
        if self.in_flight:
            return "drain"
        if self._minimum([-int(self._has_prefill())])[0] < 0:
            return "prefill"
        return "decode" if tally.any_decode else "stuck"

    def _minimum(self, numbers: list[int]) -> list[int]:
        return numbers if self.reduce is None else self.reduce(numbers)

    def _ballot(self) -> Ballot:
        has_partial = self._partial() is not None
        wants = has_partial or (bool(self.waiting) and self._has_cache_room())
        if self.reduce is None:
            wants = self._has_prefill()
        return Ballot(
            has_request=bool(self.waiting or self.holders),
            can_decode=bool(self._decodable()),
            wants_prefill=wants,
            has_partial=has_partial,
            has_overdue=self._is_overdue() and self._is_admissible(self.waiting[0]),
        )

    def _has_prefill(self) -> bool:
        """Whether a prefill step would have rows of this rank."""
        return self._partial() is not None or (bool(self.waiting) and self._is_admissible(self.waiting[0]))

    def _is_overdue(self) -> bool:
        return bool(self.waiting) and self.head_waited >= self.limits.max_wait_steps

    def _has_cache_room(self) -> bool:
        return not self.holders or self.page_pool.used <= self.limits.max_cache_usage * self.page_pool.usable

    def _is_admissible(self, head: Request) -> bool:
        """Whether the head of the queue can have its pages and its slot now.

        Unless it is overdue, a page to spare is asked for each request that holds pages, and a cache that is not full.
        """
        if len(self.holders) >= self.limits.max_num_seqs or self.slot_pool.verdict(1) is not Admission.OK:
            return False
        need = self.limits.pages_for(len(head.tokens))
        if self._is_overdue():
            return self.page_pool.verdict(need) is Admission.OK
        return self._has_cache_room() and self.page_pool.verdict(need + len(self.holders)) is Admission.OK

    def _partial(self) -> Request | None:
        """The request whose prompt is not computed to its end."""
        return next((request for request in self.holders if request.state == "prefill"), None)

    def _decodable(self) -> list[Request]:
        """Requests that live on even if each step in flight adds one token only, oldest first."""
        return [r for r in self.holders if r.state == "running" and r.shortest < r.limit]

    def _watch(self, kind: str) -> None:
        """Raise in a stall: requests and nothing that could run, or no progress for too many calls."""
        self.idle_calls += 1
        is_stuck = kind == "stuck" and not self.in_flight
        if is_stuck or (self.idle_calls > self.limits.stall_limit and (self.waiting or self.holders)):
            raise RuntimeError("stall: nothing can run\n" + self.dump())

    # Prefill

    def _schedule_prefill(self) -> StepPlan:
        """Chunks of the partial request, then of the waiting ones, up to the budget of rows; empty in a group."""
        plan = self._new_plan("prefill")
        budget = self.limits.max_num_batched_tokens
        partial = self._partial()
        if partial is not None:
            budget -= self._prefill_rows(plan, partial, budget)
        while self.waiting and self._is_last_complete(plan) and self._is_admissible(self.waiting[0]):
            request = self.waiting[0]
            if self.limits.chunk(request.computed, request.prefill_len, budget) == 0:
                break
            self._admit(request)
            budget -= self._prefill_rows(plan, request, budget)
        return self._launch(plan)

    def _is_last_complete(self, plan: StepPlan) -> bool:
        """Whether the plan has no chunk that leaves its prompt unfinished."""
        return not plan.requests or plan.kv_lens[-1] == plan.requests[-1].prefill_len

    def _admit(self, request: Request) -> None:
        self.waiting.remove(request)
        self.holders.append(request)
        request.state = "prefill"
        self.head_waited = 0
        request.pages = self.page_pool.take(self.limits.pages_for(len(request.tokens)))
        request.slot = self.slot_pool.take(1)[0]
        request.fresh = True

    def _prefill_rows(self, plan: StepPlan, request: Request, budget: int) -> int:
        """Add the request's next chunk to the plan; only the last of a prompt gives a token. Returns its rows."""
        rows = self.limits.chunk(request.computed, request.prefill_len, budget)
        start, end = request.computed, request.computed + rows
        is_sampled = end == len(request.tokens)
        plan.append(request, start, request.tokens[start:end], is_sampled, previous_row=-1)
        if is_sampled:
            request.promised[plan.step_id] = 1
        request.fresh = False
        return rows

    # Decode

    def _schedule_decode(self) -> StepPlan | None:
        """One row and the drafts of every request that can have its pages; empty in a group, None alone."""
        plan = self._new_plan("decode")
        for request in self._decodable():
            if request.state == "running" and self._find_room(plan, request):
                self._decode_rows(plan, request)
        if not plan.request_ids and self.reduce is None:
            return None
        self.head_waited = self.head_waited + 1 if self.waiting else 0
        return self._launch(plan)

    def _find_room(self, plan: StepPlan, request: Request) -> bool:
        """Give the request pages for its rows, preempting the most recently admitted requests if there are none.

        False: it waits for pages behind a fence, which no younger request may take before it, or was itself the most
        recently admitted and is preempted.
        """
        missing = self.limits.pages_for(min(request.longest - 1, request.limit)) - len(request.pages)
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
        """Add the request's last token and its drafts to the plan; at its shortest, none may take it past its limit."""
        start = request.longest - 1
        most = min(self.limits.nextn, request.limit - request.shortest - 1)
        if request.promised:
            plan.append(request, start, [UNKNOWN_TOKEN] * (1 + most), True, self._previous_row(request))
        else:
            plan.append(request, start, [request.tokens[-1], *request.drafts[:most]], True, previous_row=-1)
        request.drafts = []
        request.promised[plan.step_id] = plan.rows_of(plan.num_requests - 1)

    def _previous_row(self, request: Request) -> int:
        return self.in_flight[-1].requests.index(request)

    # Results

    def _advance(self, plan: StepPlan, index: int, new: list[int], drafts: list[int]) -> None:
        """Append what a live row gave."""
        request = plan.requests[index]
        is_complete = plan.kv_lens[index] == request.prefill_len
        request.tokens += new
        if plan.kind == "prefill":
            request.computed = plan.kv_lens[index]
            request.state = "running" if is_complete else "prefill"
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

    # Small helpers

    def _oldest_in_flight(self, step_id: int) -> StepPlan:
        if not self.in_flight or self.in_flight[0].step_id != step_id:
            raise ValueError(
                f"step {step_id} is not the oldest of {[plan.step_id for plan in self.in_flight]} in flight"
            )
        return self.in_flight[0]

    def _new_plan(self, kind: str) -> StepPlan:
        return StepPlan(kind, self.steps + 1)

    def _launch(self, plan: StepPlan) -> StepPlan:
        plan.pad_page_table()
        self.steps = plan.step_id
        self.history.add(plan.kind)
        self.in_flight.append(plan)
        return plan
