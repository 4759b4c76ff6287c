"""The C++ core and the reference scheduler side by side: every call goes to both, every answer and state is compared.

Knows the common surface of the two; knows nothing about the device, the clock or the laws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from equivalence.simulator.plan_rows import PlanRows
from equivalence.simulator.violation import ViolationError
from equivalence.simulator.votes import Reduction
from optimized import _core
from reference import verification_lengths
from reference.scheduler import Scheduler as ReferenceScheduler
from reference.scheduling.step_plan import StepPlan

STATISTICS = (
    "num_free_pages",
    "num_deferred_pages",
    "num_free_slots",
    "num_deferred_slots",
    "num_waiting",
    "num_running",
    "num_in_flight",
    "num_preemptions",
)


class Pair:
    """Both schedulers of one rank behind one surface; answers are the core's, with plain lists for arrays.

    with_reference: False leaves the core alone; in_group: both take part in votes.
    """

    def __init__(self, limits: dict[str, Any], with_reference: bool = True, in_group: bool = False) -> None:
        self.core_vote, self.reference_vote = Reduction(), Reduction()
        self.core = _core.Scheduler(**limits, reduce=self.core_vote.for_core if in_group else None)
        self.reference: ReferenceScheduler | None = None
        if with_reference:
            self.reference = ReferenceScheduler(**limits, reduce=self.reference_vote if in_group else None)

    def add(self, request_id: int, prompt: list[int], max_tokens: int, replay_start: int) -> str:
        """`OK` or `NEVER`."""
        core = _core_answer(self.core.add, request_id, np.array(prompt, np.int64), max_tokens, replay_start)
        if self.reference is not None:
            reference = self.reference.add(request_id, prompt, max_tokens, replay_start)
            _same(f"admission of request {request_id}", core.name, reference.name)
        return str(core.name)

    def abort(self, request_id: int) -> bool:
        """Whether the request was live."""
        core = _core_answer(self.core.abort, request_id)
        if self.reference is not None:
            _same(f"abort of request {request_id}", core, self.reference.abort(request_id))
        return bool(core)

    def schedule_core(self) -> PlanRows | None:
        """The core's next step."""
        plan = _core_answer(self.core.schedule)
        return None if plan is None else PlanRows.of_core(plan)

    def schedule_reference(self) -> StepPlan | None:
        """The reference's next step. Raises RuntimeError without a reference."""
        if self.reference is None:
            raise RuntimeError("there is no reference beside this core")
        return self.reference.schedule()

    def choose_budget(self, survivals: np.ndarray, most: list[int], cost: np.ndarray) -> int:
        """How many drafts a step verifies; arguments as in the stub of `optimized._core`."""
        core = int(_core_answer(_core.choose_budget, survivals, np.array(most, np.int32), cost))
        if self.reference is not None:
            rows = [row[:length] for row, length in zip(survivals.tolist(), most, strict=True)]
            reference = verification_lengths.choose_budget(rows, lambda count: float(cost[count]), len(cost) - 1)
            _same(f"budget of {most} drafts", core, reference)
        return core

    def commit(
        self, plan: PlanRows, tokens: list[list[int]], finished: list[bool], drafts: list[list[int]]
    ) -> list[int]:
        """Tokens appended to each request of the plan."""
        flat = [token for new in tokens for token in new]
        counts = [len(new) for new in tokens]
        flat_drafts = [token for new in drafts for token in new]
        draft_counts = [len(new) for new in drafts]
        core = _core_answer(
            self.core.commit,
            plan.step_id,
            np.array(plan.request_ids, np.int64),
            np.array(flat, np.int64),
            np.array(counts, np.int32),
            np.array(finished, np.bool_),
            np.array(flat_drafts, np.int64),
            np.array(draft_counts, np.int32),
        ).tolist()
        if self.reference is not None:
            reference = self.reference.commit(
                plan.step_id, plan.request_ids, flat, counts, finished, flat_drafts, draft_counts
            )
            _same(f"tokens appended by step {plan.step_id}", core, reference)
        return list(core)

    def discard(self, plan: PlanRows) -> None:
        """The oldest step in flight failed."""
        _core_answer(self.core.discard, plan.step_id)
        if self.reference is not None:
            self.reference.discard(plan.step_id)

    def check_same_state(self) -> None:
        """Statistics, queues and every request that holds pages are equal."""
        core, reference = self.core, self.reference
        if reference is None:
            return
        for name in STATISTICS:
            _same(name, getattr(core, name), getattr(reference, name))
        _same("live requests", core.request_ids().tolist(), reference.request_ids())
        for request in reference.holders:
            key = request.request_id
            mine = (core.state(key), core.slot(key), core.num_computed(key), core.pages(key).tolist())
            theirs = (request.state, request.slot, request.computed, request.pages)
            if mine != theirs:
                raise ViolationError("lock-step", f"request {key}, core {mine}, reference {theirs}")


def _core_answer(call: Callable[..., Any], *arguments: object) -> Any:
    """What the core answers to a call that it must accept."""
    try:
        return call(*arguments)
    except (ValueError, RuntimeError) as error:
        raise ViolationError("I24" if "stall" in str(error) else "lock-step", f"the core refuses: {error}") from error


def check_same_plan(core: PlanRows | None, reference: StepPlan | None) -> None:
    """Both plan the same step."""
    if core is None or reference is None:
        _same("kind of the next step", core and core.kind, reference and reference.kind)
        return
    different = core.differences(reference)
    if different:
        raise ViolationError("lock-step", f"plan of step {core.step_id}, core and reference: " + "; ".join(different))


def _same(what: str, core: object, reference: object) -> None:
    if core != reference:
        raise ViolationError("lock-step", f"{what}: core {core}, reference {reference}")
