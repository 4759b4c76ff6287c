"""The invariants I1 .. I24 of the scheduler as methods that print both sides; `ledger.py` holds what they compare with.

Knows the core's getters, plans and results; knows nothing about how the core or the reference decides.
Source: serving specification §6.7. I8 is in `votes.py`, I9 and I10 in `simulation.py`. Not here, because nothing could
break them yet: I21 and the sharing of I3 (there is no prefix cache). I17, the order of outputs in I19 and grammar
matchers in I20 are the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equivalence.simulator.device import StepResult
from equivalence.simulator.ledger import Ledger
from equivalence.simulator.model import STOP_TOKEN
from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.world import Arrival

if TYPE_CHECKING:
    from equivalence.simulator.rank import Launched, Live, Rank

STALL_TICKS = 200


class Laws:
    """Watches one rank. Every method named i<number>_... is one invariant and raises ViolationError."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.world = rank.world
        self.core = rank.pair.core
        self.ledger = Ledger(self.core)
        self._missed = 0  # prefill steps in a row without the oldest request
        self._decodes_before_head = 0
        self._last_progress = 0

    # Moments

    def check_state(self) -> None:
        """After every call."""
        self.rank.pair.check_same_state()
        self.ledger.refresh()
        self.i1_every_page_is_in_one_place()
        self.i2_page_0_is_never_owned()
        self.i3_nothing_has_two_owners()
        self.i4_in_flight_is_not_free()
        self.i6_one_slot_per_holder()
        self.i12_order_is_arrival_order()
        self.i20_nothing_waits_without_a_step()
        self.i5_the_core_agrees()

    def check_admission(self, arrival: Arrival, verdict: str) -> None:
        """After add."""
        self.i13_never_is_refused_at_once(arrival, verdict)

    def check_schedule(self, plan: PlanRows | None) -> None:
        """After schedule, before the device runs it."""
        preempted = self.ledger.refresh()
        self.i14_the_youngest_are_preempted(preempted)
        if plan is None:
            return
        self.i19_rows_belong_to_their_slots(plan)
        self.i2_page_0_is_never_data(plan)
        self.i7_pages_cover_the_rows(plan)
        self.i16_rows_fit_the_budget(plan)
        self.i16_chunks_end_on_the_grid(plan)
        self.i14_output_is_not_sampled_again(plan)
        self.i4_a_prefill_is_alone_in_flight(plan)
        self.i23_a_new_slot_is_zeroed(plan)
        self.i11_the_oldest_is_served(plan)
        self.i11_an_admissible_head_is_attempted(plan)
        self.ledger.launch(plan)

    def check_launch(self, plan: PlanRows, result: StepResult) -> None:
        """After the device ran a plan."""
        self.i18_lengths_are_bounded(plan, result)
        self.i16_verified_drafts_fit_the_budget(plan, result)

    def check_commit(self, launched: Launched, tokens: list[list[int]], appended: list[int], zombies: set[int]) -> None:
        """After commit, before the requests know of their new tokens."""
        plan = launched.plan
        self.i15_tokens_are_appended_once(plan, tokens, appended, zombies)
        self.i22_blocks_are_the_lone_blocks(launched, zombies)
        if plan.request_ids:
            self._last_progress = self.rank.now

    def check_text(self, known: Live, new: list[int]) -> None:
        """New tokens of a live request, its output includes them."""
        self.i22_text_is_the_lone_text(known, new)

    def check_flushed(self, known: Live, end: int) -> None:
        """New tokens of a request that goes on, and no step in flight but theirs."""
        self.i18_lengths_agree_after_flush(known, end)

    def check_end(self) -> None:
        """Nothing will come and nothing is left."""
        self.i20_all_is_free_at_the_end()

    # Pages and slots

    def i1_every_page_is_in_one_place(self) -> None:
        """I1: free + owned + deferred = usable."""
        free, deferred = self.core.num_free_pages, self.core.num_deferred_pages
        owned = sum(len(holding.pages) for holding in self.ledger.holders.values())
        if free + owned + deferred != self.world.num_pages - 1:
            raise ViolationError(
                "I1", f"{free} free + {owned} owned + {deferred} deferred, usable {self.world.num_pages - 1}"
            )

    def i2_page_0_is_never_owned(self) -> None:
        """I2: page and slot 0 are reserved, and no number is outside the pool."""
        for key, holding in self.ledger.holders.items():
            if holding.pages and not 0 < min(holding.pages) <= max(holding.pages) < self.world.num_pages:
                raise ViolationError(
                    "I2", f"request {key} has pages {holding.pages} of 1 .. {self.world.num_pages - 1}"
                )
            if not 0 < holding.slot < self.world.num_slots:
                raise ViolationError("I2", f"request {key} has slot {holding.slot} of 1 .. {self.world.num_slots - 1}")

    def i2_page_0_is_never_data(self, plan: PlanRows) -> None:
        """I2: page 0 in a page table stands only behind the last page of a request."""
        for index, table in enumerate(plan.page_table):
            written = self._most_written(plan, index)
            if 0 in table[: -(-written // self.world.page_size)]:
                raise ViolationError("I2", f"request {plan.request_ids[index]}: {written} positions in {table}")

    def _most_written(self, plan: PlanRows, index: int) -> int:
        """Positions of a request once the step is done; rows planned beyond its limit are dropped on the device."""
        return min(plan.kv_lens[index], self.rank.limit(plan.request_ids[index]))

    def i3_nothing_has_two_owners(self) -> None:
        """I3: no page and no slot belongs to two requests (nothing is shared without a prefix cache)."""
        pages = [page for holding in self.ledger.holders.values() for page in holding.pages]
        slots = [holding.slot for holding in self.ledger.holders.values()]
        for name, numbers in (("pages", pages), ("slots", slots)):
            if len(set(numbers)) != len(numbers):
                twice = sorted({number for number in numbers if numbers.count(number) > 1})
                raise ViolationError("I3", f"{name} {twice} have two owners: {self.ledger.holders}")

    def i4_in_flight_is_not_free(self) -> None:
        """I4: what a step in flight uses is neither free nor handed to another."""
        pages, slots = self.ledger.in_flight_resources()
        for key, holding in self.ledger.holders.items():
            taken = [page for page in holding.pages if pages.get(page, holding.life) != holding.life]
            if taken or slots.get(holding.slot, holding.life) != holding.life:
                raise ViolationError(
                    "I4", f"request {key} got pages {taken} or slot {holding.slot}, in use by a step in flight: {pages}"
                )
        owned = {page for holding in self.ledger.holders.values() for page in holding.pages}
        busy = len(owned | pages.keys())
        if self.core.num_free_pages + busy > self.world.num_pages - 1:
            raise ViolationError(
                "I4", f"{self.core.num_free_pages} free + {busy} owned or in flight > {self.world.num_pages - 1}"
            )

    def i4_a_prefill_is_alone_in_flight(self, plan: PlanRows) -> None:
        """I4: everything is committed before a prefill step starts, so that pages and slots it gets are settled."""
        others = [launched.step_id for launched, _ in self.ledger.in_flight]
        if plan.kind == "prefill" and others:
            raise ViolationError("I4", f"prefill step {plan.step_id} starts while steps {others} are in flight")

    def i5_the_core_agrees(self) -> None:
        """I5: nothing is freed twice: the core's own count of every page and slot."""
        try:
            self.core.check_integrity()
        except RuntimeError as error:
            raise ViolationError("I5", str(error)) from error

    def i6_one_slot_per_holder(self) -> None:
        """I6: used slots = running + deferred; a slot does not change in a life."""
        used = self.world.num_slots - 1 - self.core.num_free_slots
        running, deferred = self.core.num_running, self.core.num_deferred_slots
        if used != running + deferred or running != len(self.ledger.holders):
            raise ViolationError(
                "I6", f"{used} slots used, {running} running ({len(self.ledger.holders)} seen) + {deferred} deferred"
            )
        if self.ledger.moved:
            raise ViolationError("I6", f"slots changed while held: {self.ledger.moved}")

    def i7_pages_cover_the_rows(self, plan: PlanRows) -> None:
        """I7: pages of a request hold every position that the step may write, and are no more than its life takes."""
        for index, key in enumerate(plan.request_ids):
            pages = self.ledger.holders[key].pages
            room, written = len(pages) * self.world.page_size, self._most_written(plan, index)
            if room < written:
                raise ViolationError("I7", f"request {key}: {room} positions in its pages, step writes {written}")
            lifetime = self._pages(self.rank.limit(key))
            if len(pages) > lifetime:
                raise ViolationError("I7", f"request {key}: has {len(pages)} pages, needs {lifetime} at its longest")
            if plan.page_table[index][: len(pages)] != pages or any(plan.page_table[index][len(pages) :]):
                raise ViolationError("I7", f"request {key}: page table {plan.page_table[index]}, pages {pages}")

    def i20_nothing_waits_without_a_step(self) -> None:
        """I20: nothing is deferred once no step is in flight."""
        pages, slots = self.core.num_deferred_pages, self.core.num_deferred_slots
        if self.core.num_in_flight == 0 and (pages or slots):
            raise ViolationError("I20", f"no step in flight, {pages} pages and {slots} slots deferred")

    def i20_all_is_free_at_the_end(self) -> None:
        """I20: with no request left, free = usable."""
        free = (self.core.num_free_pages, self.core.num_free_slots)
        usable = (self.world.num_pages - 1, self.world.num_slots - 1)
        if free != usable or self.core.request_ids().size:
            raise ViolationError("I20", f"pages and slots free at the end {free}, usable {usable}")

    def i23_a_new_slot_is_zeroed(self, plan: PlanRows) -> None:
        """I23: a slot is fresh in the first step of a life, and in no other."""
        for index, key in enumerate(plan.request_ids):
            first = not self.ledger.holders[key].has_run
            if plan.fresh[index] != first:
                raise ViolationError(
                    "I23", f"request {key}: fresh is {plan.fresh[index]}, first step of its life: {first}"
                )

    # Order and progress

    def i11_the_oldest_is_served(self, plan: PlanRows) -> None:
        """I11: the oldest running request is in every decode step unless its end is promised, and prefill steps without
        it are few."""
        key = next(iter(self.rank.live), None)
        if key is None or key in plan.request_ids or self.core.state(key) != "running":
            self._missed = 0
        elif plan.kind == "prefill":
            self._missed += 1
            if self._missed > self.world.max_consecutive_prefills:
                raise ViolationError("I11", f"request {key} is the oldest, {self._missed} prefill steps without it")
        elif not self.ledger.promised(key):
            raise ViolationError("I11", f"request {key} is the oldest, step {plan.step_id} decodes {plan.request_ids}")

    def i11_an_admissible_head_is_attempted(self, plan: PlanRows) -> None:
        """I11: the head of the queue, once everything it needs is free, waits at most for the next vote of any rank."""
        waits = plan.kind == "decode" and self._is_head_admissible()
        self._decodes_before_head = self._decodes_before_head + 1 if waits else 0
        bound = min(self.world.prefill_any_interval, self.world.max_wait_steps) + 1
        if self._decodes_before_head > bound:
            raise ViolationError(
                "I11", f"an admissible head waits {self._decodes_before_head} decode steps, at most {bound}"
            )

    def _is_head_admissible(self) -> bool:
        """By the rule of admission, from the getters alone: pages with one to spare for each holder, slot, usage."""
        world, core = self.world, self.core
        if not core.num_waiting or core.num_running >= world.max_num_seqs or not core.num_free_slots:
            return False
        usable, free = world.num_pages - 1, core.num_free_pages
        if core.num_running and usable - free > world.max_cache_usage * usable:
            return False
        head = self.rank.live[int(core.request_ids()[core.num_running])]
        return self._pages(len(head.prompt) + len(head.output)) + core.num_running <= free

    def _pages(self, length: int) -> int:
        """Of a sequence of that many tokens, with the room of one more step."""
        return -(-(length + self.world.nextn + 1) // self.world.page_size)

    def i12_order_is_arrival_order(self) -> None:
        """I12: live requests, holders before waiting ones, stand in order of arrival: nobody overtakes."""
        ids = self.core.request_ids().tolist()
        expected = list(self.rank.live)
        if ids != expected:
            raise ViolationError("I12", f"live requests {ids}, in order of arrival {expected}")
        if ids[: len(self.ledger.holders)] != list(self.ledger.holders):
            raise ViolationError("I12", f"requests with pages {list(self.ledger.holders)}, oldest {ids}")

    def i13_never_is_refused_at_once(self, arrival: Arrival, verdict: str) -> None:
        """I13: NEVER exactly if the lifetime does not fit all pages, or the prompt leaves no room."""
        world = self.world
        pages = self._pages(min(arrival.prompt_len + arrival.max_tokens, world.max_model_len))
        fits = pages < world.num_pages and arrival.prompt_len < world.max_model_len
        if (verdict == "OK") != fits or verdict == "LATER":
            raise ViolationError(
                "I13", f"request {arrival.request_id}: {verdict}, needs {pages} of {world.num_pages - 1} pages"
            )

    def i14_the_youngest_are_preempted(self, preempted: list[int]) -> None:
        """I14: never the oldest, always the most recently admitted, tokens kept."""
        if not preempted:
            return
        before = self.ledger.order_before
        if preempted != before[len(before) - len(preempted) :] or len(preempted) == len(before):
            raise ViolationError("I14", f"preempted {preempted} of {before}, oldest first")
        for key in preempted:
            known = self.rank.live[key]
            kept = self.core.tokens(key).tolist()
            if kept != known.prompt + known.output:
                raise ViolationError(
                    "I14", f"request {key} preempted: {kept} kept, {known.prompt + known.output} known"
                )

    def i14_output_is_not_sampled_again(self, plan: PlanRows) -> None:
        """I14: a prompt samples at its end; a request that comes back has all but its last token computed, no more."""
        if plan.kind == "decode":
            return
        for index, key in enumerate(plan.request_ids):
            known, end = self.rank.live[key], plan.kv_lens[index]
            is_sampled = not known.output and end == len(known.prompt)
            row = plan.query_start[index + 1] - 1 if is_sampled else -1
            if plan.sample_rows[index] != row or end > known.prefill_len:
                raise ViolationError(
                    "I14",
                    f"request {key}: a chunk up to {end} of {len(known.prompt)} + {len(known.output)} tokens, sampled "
                    f"row {plan.sample_rows[index]}, expected {row}",
                )

    def check_progress(self) -> None:
        """I24: with work waiting, something is computed, or the core itself reports a stall."""
        idle = self.rank.now - self._last_progress
        if not self.core.has_work():
            self._last_progress = self.rank.now
        elif idle > STALL_TICKS:
            raise ViolationError(
                "I24", f"nothing was computed in {idle} ticks and the core did not say so\n{self.core.dump()}"
            )

    # Tokens and lengths

    def i15_tokens_are_appended_once(
        self, plan: PlanRows, tokens: list[list[int]], appended: list[int], zombies: set[int]
    ) -> None:
        """I15: a live row appends what the step gave, a zombie nothing."""
        for index, key in enumerate(plan.request_ids):
            expected = 0 if index in zombies else len(tokens[index])
            if appended[index] != expected:
                raise ViolationError(
                    "I15", f"request {key} in step {plan.step_id}: {appended[index]} appended, {expected} given"
                )

    def i16_rows_fit_the_budget(self, plan: PlanRows) -> None:
        """I16: rows within the budget, one row and at most nextn drafts a decoding request."""
        rows = plan.query_start[-1]
        if rows > self.world.max_num_batched_tokens or len(plan.request_ids) > self.world.max_num_seqs:
            raise ViolationError(
                "I16",
                f"{rows} rows of {len(plan.request_ids)} requests, allowed {self.world.max_num_batched_tokens} rows of "
                f"{self.world.max_num_seqs}",
            )
        if plan.kind == "prefill":
            return
        for index, key in enumerate(plan.request_ids):
            drafts = plan.query_start[index + 1] - plan.query_start[index] - 1
            if not 0 <= drafts <= self.world.nextn:
                raise ViolationError("I16", f"request {key}: {drafts} drafts, at most {self.world.nextn}")

    def i16_verified_drafts_fit_the_budget(self, plan: PlanRows, result: StepResult) -> None:
        """I16: R + K rows; K is of the drafts that the host knows to exist."""
        budget = self.rank.budget
        verified = sum(len(tokens) - 1 for _, tokens in result.inputs)
        offered = plan.query_start[-1] - len(plan.request_ids)
        if plan.kind == "decode" and budget is not None and not verified <= budget <= offered:
            raise ViolationError("I16", f"{verified} drafts verified, budget {budget}, {offered} offered")

    def i16_chunks_end_on_the_grid(self, plan: PlanRows) -> None:
        """I16: a chunk that is not the last ends on the grid, and a rank has one unfinished prompt at most."""
        lengths = [self.rank.prefill_len(key) for key in plan.request_ids]
        unfinished = [end for end, length in zip(plan.kv_lens, lengths, strict=True) if end < length]
        if plan.kind == "decode":
            return
        if len(unfinished) > 1 or any(end % self.world.chunk_grid for end in unfinished):
            raise ViolationError(
                "I16", f"chunks end at {unfinished}, allowed is one, on the grid of {self.world.chunk_grid}"
            )

    def i18_lengths_are_bounded(self, plan: PlanRows, result: StepResult) -> None:
        """I18: committed length <= true length <= what the host planned for."""
        for index, key in enumerate(plan.request_ids):
            settled, true, planned = self.ledger.settled(key), result.ends[index], plan.kv_lens[index] + 1
            if plan.kind == "decode" and not settled <= true <= planned:
                raise ViolationError(
                    "I18", f"request {key}: {settled} committed, {true} on the device, {planned} planned"
                )

    def i18_lengths_agree_after_flush(self, known: Live, end: int) -> None:
        """I18: with no step in flight, committed length = true length."""
        settled = len(known.prompt) + len(known.output)
        if settled != end:
            raise ViolationError("I18", f"request {known.arrival.request_id}: {settled} committed, {end} on the device")

    def i19_rows_belong_to_their_slots(self, plan: PlanRows) -> None:
        """I19: a request stands once in a plan, with its own slot."""
        if len(set(plan.request_ids)) != len(plan.request_ids):
            raise ViolationError("I19", f"step {plan.step_id} has a request twice: {plan.request_ids}")
        for key, slot in zip(plan.request_ids, plan.slots, strict=True):
            if key not in self.ledger.holders or self.ledger.holders[key].slot != slot:
                raise ViolationError(
                    "I19", f"step {plan.step_id}: request {key} in slot {slot}, holders {self.ledger.holders}"
                )

    def i22_blocks_are_the_lone_blocks(self, launched: Launched, zombies: set[int]) -> None:
        """I22: the drafts that a step verifies are those that follow the text before it, as many as its limit leaves
        room for: whatever was preempted, and however late the host learns what was accepted."""
        for index, key in enumerate(launched.plan.request_ids):
            if launched.plan.kind == "prefill" or index in zombies:
                continue
            known = self.rank.live[key]
            length = len(known.prompt) + len(known.output)
            drafts = self.rank.draft(key, length)[: known.limit - length - 1]
            start, tokens = launched.result.inputs[index]
            verified = len(tokens) - 1 if launched.is_budgeted else len(drafts)
            if start != length - 1 or tokens[1:] != drafts[:verified]:
                raise ViolationError(
                    "I22", f"request {key}: {tokens[1:]} verified from {start + 1}, drafted {drafts} from {length}"
                )

    def i22_text_is_the_lone_text(self, known: Live, new: list[int]) -> None:
        """I22: whatever the order of things, the text is that of the request alone; it ends where it must."""
        begin = len(known.prompt) + len(known.output) - len(new)
        for position, token in enumerate(new, begin):
            alone = known.lone.token(position)
            if token != alone:
                raise ViolationError(
                    "I22", f"request {known.arrival.request_id}, position {position}: token {token}, alone {alone}"
                )
        if begin + len(new) > known.limit or STOP_TOKEN in known.output[:-1]:
            raise ViolationError(
                "I15",
                f"request {known.arrival.request_id}: {known.output} goes past its limit {known.limit} or its stop",
            )
