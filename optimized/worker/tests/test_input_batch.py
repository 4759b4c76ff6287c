"""Steps from static buffers: buckets, padding, open tokens, and no look at the device's results on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from optimized._core import Scheduler, StepPlan
from optimized.config import EngineConfig
from optimized.model.tests.random_models import RATIO_4, write_checkpoint
from optimized.worker.decode_rows import BlockResults
from optimized.worker.input_batch import InputBatch, bucket_pages, bucket_rows
from optimized.worker.worker import Worker
from reference.spec.errors import EngineError

pytestmark = pytest.mark.ci

#: What hands a tensor's contents to the host.
WAITS = {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero", "is_nonzero"}
KERNELS = "optimized/ops/portable/"


class HostWaitGuard(TorchFunctionMode):
    """Raises where code reads a tensor on the host. The portable operations are the CPU's kernels: what they do inside
    is the device's own work."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in WAITS:
            frame = sys._getframe(1)
            while "optimized" not in frame.f_code.co_filename and frame.f_back is not None:
                frame = frame.f_back
            if KERNELS not in frame.f_code.co_filename:
                raise AssertionError(f"{frame.f_code.co_filename}:{frame.f_lineno} waits for the device: {name}")
        return func(*args, **(kwargs or {}))


def scheduler_with(prompts: list[int], max_in_flight: int = 1) -> Scheduler:
    scheduler = Scheduler(60, 8, 9, 8, 64, 128, max_in_flight=max_in_flight)
    for index, length in enumerate(prompts):
        scheduler.add(index, np.arange(length, dtype=np.int64) % 7 + index, 20)
    return scheduler


def commit(scheduler: Scheduler, plan: StepPlan, token: int = 5) -> None:
    counts = (plan.sample_rows >= 0).astype(np.int32)
    tokens = np.full(counts.sum(), token, dtype=np.int64)
    scheduler.commit(plan.step_id, plan.request_ids, tokens, counts, np.zeros(len(counts), dtype=np.bool_))


def decode_plan(prompts: list[int]) -> StepPlan:
    scheduler = scheduler_with(prompts)
    while (plan := scheduler.schedule()) is not None and plan.kind == "prefill":
        commit(scheduler, plan)
    assert plan is not None
    return plan


def results(tokens: list[int] | torch.Tensor) -> BlockResults:
    """Of a step that kept no drafts and made none."""
    count = len(tokens)
    none = torch.zeros(count, 0)
    zeros = torch.zeros(count, dtype=torch.int64)
    return BlockResults(torch.as_tensor(tokens), zeros, none.long(), none, np.zeros(count, dtype=np.int64))


def test_buckets_hold_their_rows_and_are_few() -> None:
    assert [bucket_pages(n) for n in (0, 1, 2, 3, 4, 5, 9)] == [1, 1, 2, 4, 4, 8, 16]
    assert [bucket_rows(n) for n in (0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 64)] == [1, 1, 2, 4, 4, 8, 8, 16, 16, 24, 64]


def test_padding_rows_see_nothing_and_belong_to_nobody() -> None:
    batch = InputBatch(64, 8, 17, 8, torch.device("cpu"))
    inputs = batch.fill(decode_plan([3, 9, 20, 1, 2])).inputs
    assert inputs.positions.tolist() == [3, 9, 20, 1, 2, -1, -1, -1]
    assert inputs.slots.tolist()[5:] == [0, 0, 0]
    assert inputs.row_request.tolist() == [0, 1, 2, 3, 4, 8, 8, 8]
    assert inputs.page_table[5:].count_nonzero() == 0
    assert inputs.page_table.shape == (9, 4)
    assert inputs.query_start is None
    assert inputs.sample_rows.tolist() == list(range(8))


def test_steps_of_a_bucket_read_the_same_memory_and_look_the_same_from_the_host() -> None:
    batch = InputBatch(64, 8, 17, 8, torch.device("cpu"))
    places = []
    for prompts in ([3, 9, 18, 1, 2], [5, 7, 8, 2, 9, 30, 1], [17] * 8):
        inputs = batch.fill(decode_plan(prompts)).inputs
        tensors = [value for value in vars(inputs).values() if isinstance(value, torch.Tensor)]
        places.append([(tensor.data_ptr(), tensor.stride(), tensor.shape) for tensor in tensors])
        assert (inputs.query_start, inputs.max_position, inputs.kept) == (None, 31, None)
    assert places[0] == places[1] == places[2]


def test_open_tokens_come_from_the_step_in_flight() -> None:
    scheduler, batch = scheduler_with([3, 9, 20], max_in_flight=2), InputBatch(64, 8, 17, 8, torch.device("cpu"))
    commit(scheduler, scheduler.schedule())  # type: ignore[arg-type]
    first, second = scheduler.schedule(), scheduler.schedule()
    assert first is not None
    assert second is not None
    assert second.tokens.tolist() == [-1, -1, -1]
    assert batch.fill(first).inputs.tokens.tolist() == [5, 5, 5, 0]
    assert batch.fill(second, previous=results([31, 32, 33])).inputs.tokens.tolist() == [31, 32, 33, 0]
    with pytest.raises(EngineError, match="step 3 needs tokens of a step in flight"):
        batch.fill(second)


def test_no_step_waits_for_the_device(tmp_path: Path) -> None:
    write_checkpoint(RATIO_4, tmp_path, seed=3)
    replay: dict[str, Any] = {"yoco_mode": "compact", "yoco_keep_tokens": 9}
    options: dict[str, Any] = {"max_num_seqs": 8, "num_pages": 60, "page_size": 8, "max_num_batched_tokens": 64}
    worker = Worker(tmp_path, EngineConfig(max_model_len=128, device="cpu", **options, **replay))
    scheduler = scheduler_with([3, 50, 20], max_in_flight=2)
    previous, kinds = None, []
    for _ in range(6):
        plan = scheduler.schedule()
        assert plan is not None
        with HostWaitGuard():
            logits = worker.forward(worker.prepare(plan, previous=previous))
            previous = results(logits.argmax(dim=1))
        kinds.append(plan.kind)
        commit(scheduler, plan)
    assert kinds[0] == "prefill"
    assert kinds.count("decode") >= 4


def test_the_guard_sees_a_wait() -> None:
    with HostWaitGuard(), pytest.raises(AssertionError, match="waits for the device: item"):
        torch.ones(1).item()
