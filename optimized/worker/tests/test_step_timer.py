"""A worker with drafts: what it holds, made-up steps that leave nothing behind, and no wait for the device."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized._core import Scheduler
from optimized.config import EngineConfig
from optimized.model.tests.random_models import FULL, write_checkpoint
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.step_timer import MadeUpPlan
from optimized.worker.tests.test_input_batch import HostWaitGuard
from optimized.worker.tests.test_memory import holds_what_its_plan_says
from optimized.worker.worker import Worker
from reference.spec.errors import EngineError

pytestmark = pytest.mark.ci

NEXTN, SEQUENCES = 3, 3
#: No Engram, so that no tokenizer is needed.
MODEL = dataclasses.replace(FULL, engram_layer_ids=(), engram_num_embeddings=())


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    write_checkpoint(MODEL, tmp_path, seed=2)
    config = EngineConfig(max_num_seqs=SEQUENCES, nextn=NEXTN, max_model_len=96, device="cpu", page_size=8)
    return Worker(tmp_path, config)


def greedy(logits: torch.Tensor, slot: int) -> torch.Tensor:
    return torch.argmax(logits, dim=1)


def drafts(worker: Worker, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Logits and drafts after a prefill of some prompts."""
    scheduler = Scheduler(worker.num_pages(), 8, SEQUENCES + 1, SEQUENCES, 96, 96, NEXTN)
    for index, prompt in enumerate(prompts):
        scheduler.add(index, np.array(prompt, dtype=np.int64), 20)
    plan = scheduler.schedule()
    assert plan is not None
    step = worker.prepare(plan)
    logits = worker.forward(step)
    places = torch.arange(len(prompts))
    made = worker.propose(step, places, logits.argmax(dim=1), places * 0, greedy)
    return [logits.clone(), made.ids, made.logits, made.confidence]


def test_made_up_rows_are_blocks_of_the_most_drafts() -> None:
    plan = MadeUpPlan.of(10, NEXTN, context=20, pages=3)
    assert plan.query_start.tolist() == [0, 4, 8, 10]
    assert plan.positions.tolist() == [20, 21, 22, 23] * 2 + [20, 21]
    assert set(plan.slots.tolist()) == {0}
    assert not plan.page_table.any()
    assert plan.page_table.shape == (3, 3)


def test_timed_steps_leave_nothing_behind(worker: Worker, rng: np.random.Generator) -> None:
    prompts = [rng.integers(0, MODEL.vocab_size, size=size).tolist() for size in (30, 4)]
    expected = drafts(worker, prompts)
    for rows in (1, 2, 5, 12):
        times = worker.time_steps(rows, 2)
        assert len(times) == 2
        assert all(time > 0 for time in times)
    for found, one in zip(drafts(worker, prompts), expected, strict=True):
        assert torch.equal(found, one)


def test_a_worker_with_drafts_holds_what_its_plan_says(worker: Worker) -> None:
    assert holds_what_its_plan_says(worker)


def test_rows_that_drafts_are_drawn_from_are_planned_for(tmp_path: Path) -> None:
    write_checkpoint(MODEL, tmp_path, seed=2)
    options: dict[str, Any] = {"max_num_seqs": 3, "nextn": 3, "max_model_len": 96, "device": "cpu", "num_pages": 9}
    plans = [Worker(tmp_path, EngineConfig(**options, verification=rule)).memory_plan for rule in ("coupled", "ratio")]
    assert plans[1].scratch - plans[0].scratch == 8 * 4 * 3 * MODEL.vocab_size


@pytest.mark.parametrize("budget", [None, 4])
def test_no_step_with_drafts_waits_for_the_device(worker: Worker, budget: int | None) -> None:
    scheduler = Scheduler(worker.num_pages(), 8, SEQUENCES + 1, SEQUENCES, 96, 96, NEXTN, max_in_flight=2)
    for index, length in enumerate((3, 20, 9)):
        scheduler.add(index, np.arange(length, dtype=np.int64), 30)
    places, previous, open_steps = torch.arange(3), None, 0
    for _ in range(4):
        plan = scheduler.schedule()
        assert plan is not None
        open_steps += bool((plan.previous_rows >= 0).any())
        survival = None if budget is None else np.ones((3, NEXTN), dtype=np.float32)
        limits = BlockLimits(np.array([33, 50, 39]), budget, survival) if plan.kind == "decode" else None
        with HostWaitGuard():
            step = worker.prepare(plan, limits=limits, previous=previous)
            logits = worker.forward(step)
            newest, kept = logits[:3].argmax(dim=1), step.lengths.clamp(max=1)
            made = worker.propose(step, places, newest, kept, greedy)
        rows = 3 if plan.kind == "prefill" else plan.num_rows if budget is None else 3 + budget
        assert len(logits) == rows
        assumed = np.diff(plan.query_start).astype(np.int64) - 1
        survival_of = torch.ones(3, NEXTN)
        previous = BlockResults(newest, kept, made.ids, survival_of, assumed)
        if plan.kind == "prefill":
            tokens, counts = np.full(3, 5, dtype=np.int64), np.ones(3, dtype=np.int32)
            scheduler.commit(plan.step_id, plan.request_ids, tokens, counts, np.zeros(3, dtype=np.bool_))
            previous = None
        elif open_steps:
            break
    assert open_steps == 1


def test_drafts_need_a_worker_that_was_made_for_them(tmp_path: Path) -> None:
    write_checkpoint(MODEL, tmp_path, seed=2)
    worker = Worker(tmp_path, EngineConfig(max_num_seqs=3, max_model_len=96, device="cpu", page_size=8))
    with pytest.raises((ValueError, EngineError), match="made without its draft"):
        worker.time_steps(1, 1)
