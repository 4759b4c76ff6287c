"""Typed surface of the C++ core: which request runs next, in which pages and state slots.

Knows nothing about tensors, weights, text or sampling: it sees token ids, lengths and step results only.
choose_budget stands by itself: it sees confidences and the cost of a step only.
Sources: the serving specification, sections 6 (scheduler and memory) and 1.8 (verification budget), and csrc/.

Arrays that go in must already have the dtype and be C-contiguous (TypeError otherwise, never a silent copy).
Arrays that come out share the plan's memory: they stay valid as long as any of them (or the plan) is alive,
whatever the scheduler does next.
"""

from collections.abc import Callable
from enum import Enum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

class Admission(Enum):
    """Verdict of the page and slot pools on a request: OK fits now, LATER fits once others leave, NEVER fits."""

    OK = ...
    LATER = ...
    NEVER = ...

class PageManager:
    """Pages of a pool with their owners counted. The Scheduler has its own; this one is for tools and tests."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        """num_pages: page 0 (reserved) included, at least 2. ValueError otherwise."""
    @property
    def num_usable(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def can_allocate(self, count: int) -> Admission:
        """NEVER if count >= num_pages; OK if so many are free; else LATER."""
    def allocate(self, count: int) -> NDArray[np.int32]:
        """[count] pages with one owner each, the one freed last first. RuntimeError unless can_allocate says OK."""
    def retain(self, pages: NDArray[np.int32]) -> None:
        """[n] one owner more each. RuntimeError if one has none."""
    def release(self, pages: NDArray[np.int32]) -> None:
        """[n] one owner less each; a page without owners is free. RuntimeError if one has none."""
    def references(self, page: int) -> int:
        """Owners of a page. IndexError outside the pool."""

class StepPlan:
    """One forward step: R requests, N flat token rows, request after request. R may be 0 (a companion step, see
    Scheduler.schedule). Prefill and decode rows are never mixed in one plan."""

    @property
    def kind(self) -> Literal["prefill", "decode"]: ...
    @property
    def step_id(self) -> int:
        """1, 2, 3, ... in order of scheduling."""
    @property
    def num_requests(self) -> int:
        """R."""
    @property
    def num_rows(self) -> int:
        """N = query_start[R]."""
    @property
    def request_ids(self) -> NDArray[np.int64]:
        """[R] as given to add, oldest request first."""
    @property
    def slots(self) -> NDArray[np.int32]:
        """[R] state slot, 1 .. num_slots - 1 (slot 0 is for padding)."""
    @property
    def query_start(self) -> NDArray[np.int32]:
        """[R + 1] rows of request r are query_start[r] .. query_start[r + 1] - 1."""
    @property
    def positions(self) -> NDArray[np.int64]:
        """[N] position of each row in its sequence, from 0, contiguous within a request. Where previous_rows[r] >= 0
        this assumes that the step in flight accepts all its drafts; the device subtracts what it rejected. Of T tokens
        that the request then has, it verifies at most limit - T - 1 drafts; the rows of the others are dead, and what
        is left stands below the limit."""
    @property
    def tokens(self) -> NDArray[np.int64]:
        """[N] token id of each row; -1: not on the host yet, taken on the device from the step in flight."""
    @property
    def kv_lens(self) -> NDArray[np.int32]:
        """[R] sequence length after this step = position of the request's last row + 1; assumed as positions are, so
        that it may be beyond the request's last length."""
    @property
    def page_table(self) -> NDArray[np.int32]:
        """[R, P] page of positions j * page_size .. (j + 1) * page_size - 1; 0 = no page. P = the largest page count in
        the plan, at least 1. Every position below both kv_lens and the request's last length has one."""
    @property
    def sample_rows(self) -> NDArray[np.int32]:
        """[R] flat row whose logits give the request's next token; -1: a prefill chunk that is not the last, or of a
        request that comes back with output. A decode request with drafts (more than one row) gives its first row here;
        logits of all its rows are verified."""
    @property
    def fresh(self) -> NDArray[np.bool_]:
        """[R] the slot was handed out for this step: the worker zeroes its state before the first row."""
    @property
    def replay_starts(self) -> NDArray[np.int32]:
        """[R] the request's replay start, as given to add; kept through preemption."""
    @property
    def previous_rows(self) -> NDArray[np.int32]:
        """[R] index of the request in the plan of the step still in flight; -1: everything is on the host (always so
        with max_in_flight=1)."""

class Scheduler:
    """Requests, pages, state slots and step plans of one rank. Calls from several threads are served one at a time,
    without the GIL.

    The policy, exactly (S = tokens of a request, prompt and committed output; longest = S + what the steps in flight
    append if every draft is accepted; shortest = S + its steps in flight that sample; limit = its last length):

    Pages and slots. Number 0 is reserved. The page or slot freed last is handed out first, at first in ascending order.
    A request needs pages(n) = ceil((n + nextn + 1) / page_size) pages to be n tokens long: the room of one more step.
    Release: at once if no step in flight has a row of the request (of its present admission), else when the newest
    step launched so far is committed.

    Admission, oldest first, nobody overtakes. The head of the queue is admissible if fewer than max_num_seqs requests
    hold pages, a slot is free, and of the free pages pages(S) are there and one to spare for every request that holds
    pages; and if the cache is not full: no request holds pages, or used <= max_cache_usage * usable (used = not free).
    A head that has waited for max_wait_steps decode steps is overdue: then its slot and its pages(S) are enough. The
    count is 0 after an admission and after a decode step that leaves the queue empty, else one more a decode step.

    Prefill. The unfinished prompt (partial) first, then the queue, while the head is admissible. What is computed is
    the whole prompt, whose last row samples; of a request that comes back with output all its tokens but the last, and
    no row samples: its last token is computed by its next decode step, with the drafts given to the commit of its last
    chunk. A chunk is what is left of these, or ends at the last multiple of chunk_grid within the budget of
    max_num_batched_tokens rows; a chunk that is not the last ends the step, an empty one too. Nothing else is in flight
    with a prefill step.

    Decode. Oldest first, every request with shortest < limit. Rows: its last token and d drafts, d = min(nextn,
    limit - shortest - 1, drafts), where drafts = those given to commit, or nextn if the request is in the step in
    flight (its tokens are then -1 and known to the device only). So at T tokens a request has all its drafts, up to
    limit - T - 1, whether the step that made them T is committed or in flight; the device drops those planned for a
    shorter one. It needs pages(min(longest - 1, limit)). If they are not free: the most recently admitted request is
    preempted, again and again, while free + deferred pages are fewer than it needs and older ones of this step wait
    for. If that yields free pages and nobody older waits, it has them; if they are on their way (deferred), it waits
    for them and sits out this step; else it is preempted itself. The oldest is never preempted. A preempted request
    keeps its tokens, forgets drafts, and is next in the queue by its age.

    Kind of the step. d = decode steps since the last prefill step, p = prefill steps since the last decode step, over
    all ranks alike. With `reduce`, each call first takes one vote (unless a prefill step is in flight: None at once):
    every rank hands in six numbers, their minimum tells what all or any say. A rank wants a prefill if it has a
    partial, or requests wait and its cache is not full (one rank alone: or its head is admissible). It can decode if a
    request that is not partial has shortest < limit. Then, the first that applies:
      no rank has a request: None.
      no rank can decode: prefill if any rank wants it, else no step (None, or a stall with nothing in flight).
      p >= max_consecutive_prefills: decode.
      any rank has a partial, or an overdue head that is admissible: prefill.
      d > 0 and d % prefill_any_interval == 0: prefill if any rank wants it.
      d % prefill_all_interval == 0: prefill if all ranks want it.
      otherwise decode.
    If prefill, and steps are in flight: None (they are committed first, then the vote is taken again). Else the second
    vote, one number: if no rank has a partial or an admissible head, decode after all. In a group a rank without rows
    of its own gets a plan of the same kind with R = 0; alone it gets None instead.
    """

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
        reduce: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ) -> None:
        """
        Args:
            num_pages: pages of the KV pool, page 0 (reserved) included; at least 2.
            page_size: tokens a page; at least nextn + 1.
            num_slots: state slots, slot 0 (reserved) included; at least 2.
            max_num_seqs: most requests that hold pages at one time.
            max_num_batched_tokens: most rows of a step; at least max_num_seqs * (nextn + 1) and at least chunk_grid.
            max_model_len: most tokens of a sequence, prompt and output together; at least 2.
            nextn: most draft tokens a decode step verifies.
            chunk_grid: a prefill chunk that is not the last ends at a multiple of this position.
            max_consecutive_prefills: after so many prefill steps since the last decode step, decode if any rank can.
            max_cache_usage: no new request is admitted while used / usable pages is above this (0 < x <= 1).
            max_in_flight: steps scheduled and not committed; 1 synchronous, 2 asynchronous with a lag of one step.
            prefill_all_interval, prefill_any_interval: decode steps between the votes; 1 is best for one rank, 70 and
                100 are the published values for a group.
            max_wait_steps: decode steps after which a waiting head is overdue.
            stall_limit: calls of schedule without progress of this rank (a commit with rows, add, abort) after which
                schedule raises; above prefill_any_interval.
            reduce: given [n] values of this rank, returns their element-wise minimum over all ranks. Called by
                schedule, once or twice, in the same order on every rank; every rank must call schedule, commit and
                discard alike, idle ones too. What it raises, schedule raises, with nothing changed. It must not call
                this scheduler. None: one rank.
        Raises:
            ValueError: names the argument, its value and the law.
        """
    def add(self, request_id: int, prompt: NDArray[np.int64], max_tokens: int, replay_start: int = 0) -> Admission:
        """Queues a request. OK: queued. NEVER: not queued, explain_never says why. (LATER is never returned.)

        Args:
            request_id: any integer >= 0 that no live request has.
            prompt: [L] token ids, L >= 1, each >= 0. Copied.
            max_tokens: >= 1. The sequence ends at L + max_tokens or at max_model_len tokens, whichever comes first.
            replay_start: 0 .. L, kept for the life of the request.
        Raises:
            ValueError: a bad argument, or a request_id already in use.
        """
    def explain_never(self, prompt_len: int, max_tokens: int) -> str:
        """The sentence, with numbers, why such a request can never run; empty if it can."""
    def lifetime_pages(self, prompt_len: int, max_tokens: int) -> int:
        """ceil((min(prompt_len + max_tokens, max_model_len) + nextn + 1) / page_size)."""
    def abort(self, request_id: int) -> bool:
        """Ends a request in any state, at once; False if no live request has this id. If a step that contains it is in
        flight, its pages and slot return when the newest step in flight is committed, and its rows in flight are
        zombies: commit takes the counts that a live row may have, 0 too, and appends nothing."""
    def has_work(self) -> bool:
        """True while a request is live or a step is not committed."""
    def schedule(self) -> StepPlan | None:
        """The next step. None: nothing to run (on any rank), or nothing may start before the oldest step in flight is
        committed.

        Raises:
            RuntimeError: max_in_flight steps are not committed; or a stall: requests live, nothing in flight and
                nothing can run, or no progress in stall_limit calls. The message names the request and what it lacks,
                and holds dump().
            ValueError, TypeError: reduce returned something else than n int64 values.
        """
    def commit(
        self,
        step_id: int,
        request_ids: NDArray[np.int64],
        tokens: NDArray[np.int64],
        counts: NDArray[np.int32],
        finished: NDArray[np.bool_],
        draft_tokens: NDArray[np.int64] | None = None,
        draft_counts: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32]:
        """Takes the result of the oldest step in flight; steps are committed in order.

        Args:
            step_id: of the oldest step in flight.
            request_ids: [R] equal to the plan's.
            tokens: [sum(counts)] sampled (or accepted and sampled) ids, request after request, each >= 0.
            counts: [R] tokens of each request. Where sample_rows[r] >= 0: 1 .. 1 + drafts of the plan, and none beyond
                the request's last length, or 0 if finished; elsewhere 0.
            finished: [R] the request ends with these tokens (stop, length, error); its pages and slot are freed. A
                request that reaches its last token by length ends in any case.
            draft_tokens, draft_counts: [sum], [R] with 0 .. nextn each: drafts of what follows the request's last
                token, to verify in its next decode step; dropped if the request is in a later step already, or its
                prefill is not complete. None: no drafts.
        Returns:
            [R] tokens appended to each request: counts, and 0 for zombies.
        Raises:
            ValueError: names the argument; nothing was changed.
        """
    def discard(self, step_id: int) -> None:
        """The oldest step in flight failed: no page or slot can be trusted. All requests keep their tokens and are
        computed again from position 0 (their rows in a later step in flight become zombies)."""

    @property
    def num_usable_pages(self) -> int: ...
    @property
    def num_free_pages(self) -> int: ...
    @property
    def num_deferred_pages(self) -> int:
        """Pages that wait for a step in flight before they return."""
    @property
    def num_usable_slots(self) -> int: ...
    @property
    def num_free_slots(self) -> int: ...
    @property
    def num_deferred_slots(self) -> int: ...
    @property
    def num_waiting(self) -> int:
        """Requests without pages."""
    @property
    def num_running(self) -> int:
        """Requests with pages, prefilling ones included."""
    @property
    def num_in_flight(self) -> int:
        """Steps scheduled and not committed."""
    @property
    def num_preemptions(self) -> int: ...
    def request_ids(self) -> NDArray[np.int64]:
        """[live requests], oldest first."""
    def state(self, request_id: int) -> Literal["waiting", "prefill", "running"]:
        """Raises ValueError for an id that is not live; so do the four below."""
    def pages(self, request_id: int) -> NDArray[np.int32]:
        """[pages] in order of position. A copy."""
    def slot(self, request_id: int) -> int:
        """0: none."""
    def tokens(self, request_id: int) -> NDArray[np.int64]:
        """[prompt + committed output]. A copy."""
    def num_computed(self, request_id: int) -> int:
        """Positions whose KV is in the pages, as far as commits have told."""
    def check_integrity(self) -> None:
        """Every page and slot is in exactly one place and counts agree; else RuntimeError with both sides."""
    def dump(self) -> str:
        """Human-readable state for a watchdog: pools, queues, steps in flight, what the head of the queue lacks, one
        line a request (the first 64)."""

def choose_budget(survivals: NDArray[np.float32], most: NDArray[np.int32], cost: NDArray[np.float64]) -> int:
    """K, the number of drafts that a step verifies: the greatest (R + sum of the K likeliest survivals) / cost[R + K].

    The sum runs in float64 in descending order, every K is tried, the least is taken on ties; the same bits as
    reference.verification_lengths.choose_budget. Takes no lock and knows no scheduler.

    Args:
        survivals: [R, n] probability that drafts 1 .. k of a request are all kept, of an earlier step; 0 .. 1. Those
            below 1e-6 are no candidates.
        most: [R] 0 .. n: the first so many drafts of each request are candidates; others are not read.
        cost: [rows + 1] duration of a step of 0, 1, ... rows, in any unit, finite and above 0; cost[0] is not read.
            rows >= R is the most rows of a step: R + K never exceeds it.
    Raises:
        ValueError: names the argument, and the entry that is wrong.
    """
