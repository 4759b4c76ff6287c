"""Decode rows with drafts: as planned where all is on the host, as worked out on paper after what was refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from optimized._core import Scheduler, StepPlan
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.input_batch import InputBatch, Prepared
from reference.spec.errors import EngineError

pytestmark = pytest.mark.ci

NEXTN = 3


def batch() -> InputBatch:
    return InputBatch(64, 8, 17, 8, torch.device("cpu"), nextn=NEXTN)


def scheduler_with(prompts: list[int], **options: Any) -> Scheduler:
    scheduler = Scheduler(60, 8, 9, 8, 64, 128, NEXTN, **options)
    for index, length in enumerate(prompts):
        scheduler.add(index, np.arange(length, dtype=np.int64) + 100 * index, 20)
    return scheduler


def commit(scheduler: Scheduler, plan: StepPlan, tokens: list[list[int]], drafts: list[list[int]]) -> None:
    scheduler.commit(
        plan.step_id,
        plan.request_ids,
        np.array([token for some in tokens for token in some], dtype=np.int64),
        np.array([len(some) for some in tokens], dtype=np.int32),
        np.zeros(len(tokens), dtype=np.bool_),
        np.array([token for some in drafts for token in some], dtype=np.int64),
        np.array([len(some) for some in drafts], dtype=np.int32),
    )


def decode_plan(scheduler: Scheduler, tokens: list[list[int]], drafts: list[list[int]]) -> StepPlan:
    """The first decode plan, after one prefill step of all prompts."""
    prefill = scheduler.schedule()
    assert prefill is not None
    commit(scheduler, prefill, tokens, drafts)
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.kind == "decode"
    return plan


def test_rows_are_the_planned_ones_where_all_is_on_the_host() -> None:
    plan = decode_plan(scheduler_with([3, 9, 20, 1]), [[41], [42], [43], [44]], [[51, 52], [], [61, 62, 63], [71]])
    step = batch().fill(plan)
    rows, inputs, counts = plan.num_rows, step.inputs, np.diff(plan.query_start)
    assert rows == step.wanted == 10
    assert inputs.tokens.tolist() == [*plan.tokens.tolist(), *[0] * 6]
    assert inputs.positions.tolist() == [*plan.positions.tolist(), *[-1] * 6]
    planned: dict[str, Any] = {
        "row_request": np.arange(4),
        "slots": plan.slots,
        "first_rows": plan.query_start[:-1],
        "first_positions": plan.kv_lens - counts,
        "end_positions": plan.kv_lens,
        "replay_starts": plan.replay_starts,
    }
    for name, values in planned.items():
        assert getattr(inputs, name)[:rows].tolist() == np.repeat(values, counts).tolist(), name
    assert inputs.sample_rows.tolist() == list(range(16))
    assert step.lengths.tolist() == [2, 0, 3, 1]
    assert step.anchors.tolist() == [3, 9, 20, 1]
    assert step.slots.tolist() == plan.slots.tolist()


def in_flight(accepted: list[int]) -> tuple[StepPlan, BlockResults]:
    """The plan of a step whose step before offered [3, 0, 3] drafts and kept so many, and that step's results."""
    scheduler = scheduler_with([3, 9, 20], max_in_flight=2)
    first = decode_plan(scheduler, [[41], [42], [43]], [[51, 52, 53], [], [61, 62, 63]])
    plan = scheduler.schedule()
    assert plan is not None
    assert (plan.previous_rows >= 0).all()
    assert set(plan.tokens.tolist()) == {-1}
    drafts = torch.tensor([[301, 302, 303], [311, 312, 313], [321, 322, 323]])
    survival = torch.tensor([[0.9, 0.4, 0.1], [0.8, 0.7, 0.6], [0.5, 0.5, 0.2]])
    anchors, assumed = torch.tensor([201, 211, 221]), np.diff(first.query_start).astype(np.int64) - 1
    assert assumed.tolist() == [3, 0, 3]
    return plan, BlockResults(anchors, torch.tensor(accepted), drafts, survival, assumed)


def rows_of(step: Prepared) -> list[tuple[int, int, int]]:
    """(request, position, token) of every row that is no padding."""
    inputs = step.inputs
    rows = zip(inputs.row_request.tolist(), inputs.positions.tolist(), inputs.tokens.tolist(), strict=True)
    return [row for row in rows if row[1] >= 0]


def test_refused_drafts_move_the_rows_back() -> None:
    plan, previous = in_flight(accepted=[1, 0, 3])
    step = batch().fill(plan, limits=BlockLimits(np.array([23, 29, 40])), previous=previous)
    # The first request was at 3 with three drafts of which one was kept: 4 is that draft's, and 5 is the anchor's.
    assert rows_of(step) == [
        (0, 5, 201),
        (0, 6, 301),
        (0, 7, 302),
        (0, 8, 303),
        (1, 10, 211),
        (1, 11, 311),
        (1, 12, 312),
        (1, 13, 313),
        (2, 24, 221),
        (2, 25, 321),
        (2, 26, 322),
        (2, 27, 323),
    ]
    assert step.inputs.first_positions[:12].tolist() == [5] * 4 + [10] * 4 + [24] * 4
    assert step.inputs.end_positions[:12].tolist() == [9] * 4 + [14] * 4 + [28] * 4
    assert step.inputs.first_rows.tolist() == [0] * 4 + [4] * 4 + [8] * 4 + [12, 13, 14, 15]
    assert step.inputs.slots[:12].tolist() == np.repeat(plan.slots, 4).tolist()
    assert step.anchors.tolist() == [5, 10, 24]


def test_no_row_is_offered_beyond_the_last_token() -> None:
    plan, previous = in_flight(accepted=[3, 0, 1])
    step = batch().fill(plan, limits=BlockLimits(np.array([10, 16, 27])), previous=previous)
    # The first has 8 of 10 tokens: one draft and the token after it. The second has 11 of 16, the third 23 of 27.
    assert step.lengths.tolist() == [1, 3, 3]
    assert [row[:2] for row in rows_of(step)] == [
        (0, 7),
        (0, 8),
        (1, 10),
        (1, 11),
        (1, 12),
        (1, 13),
        (2, 22),
        (2, 23),
        (2, 24),
        (2, 25),
    ]
    assert step.wanted == plan.num_rows
    assert step.inputs.positions.tolist()[10:] == [-1] * (len(step.inputs.positions) - 10)


def test_open_tokens_need_the_step_in_flight() -> None:
    plan, _ = in_flight(accepted=[0, 0, 0])
    with pytest.raises(EngineError, match=f"step {plan.step_id} needs tokens of a step in flight"):
        batch().fill(plan)
