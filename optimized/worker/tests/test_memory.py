"""The memory plan: bytes a page and a slot take, and what happens when they do not fit."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from optimized.config import EngineConfig
from optimized.model.caches import CacheGeometry, Caches, page_bytes, slot_bytes
from optimized.model.tests.random_models import CONFIGS, FULL, RATIO_4, write_checkpoint
from optimized.model.weights import load_weights, planned_bytes
from optimized.worker.input_batch import InputBatch
from optimized.worker.memory import MemoryPlan, plan_memory
from optimized.worker.worker import Worker
from reference.spec.errors import ConfigError

pytestmark = pytest.mark.ci

GEOMETRY = CacheGeometry(num_pages=5, page_size=8, num_slots=3, window=8, max_ngram=3, backtrack=4)


def nbytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of distinct tensors."""
    return sum({tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}.values())


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor that a tree of dataclasses, tuples and dicts holds."""
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for one in value for tensor in tensors_in(one)] if isinstance(value, list | tuple) else []


def holds_what_its_plan_says(worker: Worker) -> bool:
    """Within five percent, and never under."""
    runner = worker._runner
    model = runner._model
    held = [*tensors_in(model.weights), *tensors_in(model._frequencies), *runner._caches.tensors()]
    held += runner._batch.buffers
    return nbytes(held) <= worker.memory_plan.total <= 1.05 * nbytes(held)


@pytest.mark.parametrize("name", CONFIGS)
def test_planned_cache_bytes_are_the_allocated_ones(name: str) -> None:
    config = CONFIGS[name]
    caches = Caches.allocate(config, GEOMETRY, torch.device("cpu"))
    assert nbytes(caches.tensors()) == 5 * page_bytes(config, 8) + 3 * slot_bytes(config, GEOMETRY)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_plan_is_within_five_percent_of_what_is_allocated_and_never_under(name: str, tmp_path: Path) -> None:
    write_checkpoint(CONFIGS[name], tmp_path, seed=1)
    config = CONFIGS[name]
    weights = nbytes(tensors_in(load_weights(tmp_path, config, torch.device("cpu"))))
    token_map = 8 * config.vocab_size if config.engram_layer_ids else 0
    assert weights + token_map <= planned_bytes(config) <= 1.05 * (weights + token_map)
    batch = InputBatch(300, 7, 40, 8, torch.device("cpu"))
    assert nbytes(batch.buffers) == InputBatch.planned_bytes(300, 7, 40)


def test_a_worker_holds_what_its_plan_says(tmp_path: Path) -> None:
    write_checkpoint(RATIO_4, tmp_path, seed=1)
    assert holds_what_its_plan_says(
        Worker(tmp_path, EngineConfig(max_num_seqs=3, max_model_len=512, device="cpu", page_size=8))
    )


def test_starting_takes_the_same_memory_for_a_million_tokens(tmp_path: Path) -> None:
    config = dataclasses.replace(RATIO_4, max_position_embeddings=1 << 20)
    write_checkpoint(config, tmp_path, seed=1)
    grown = []
    for length in (4096, 4096, 1 << 20):
        before = resident_bytes()
        worker = Worker(tmp_path, EngineConfig(max_num_seqs=256, max_model_len=length, device="cpu", page_size=128))
        grown.append(resident_bytes() - before)
        del worker
    assert grown[2] < max(grown[1], 0) + (4 << 20)


def resident_bytes() -> int:
    """Of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_released_cache_takes_890_bytes_a_token() -> None:
    released = dataclasses.replace(
        FULL,
        head_dim=512,
        qk_rope_head_dim=64,
        index_head_dim=128,
        num_hidden_layers=40,
        compress_ratios=(0, 0, *[2] * 18, *[1] * 20, 0, 0, 0),
        kv_source_layer_ids=(2, 8, 14, 20),
        index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36),
        candidate_source_layer_id=20,
        num_nextn_predict_layers=3,
    )
    assert page_bytes(released, 128) == 128 * 890


def plan(budget: int, asked: int | None) -> MemoryPlan:
    return plan_memory(FULL, GEOMETRY, max_model_len=60, weights=1000, scratch=500, budget=budget + 1500, asked=asked)


def test_by_default_every_sequence_fits_at_full_length() -> None:
    assert plan(1 << 30, None).num_pages == 1 + 2 * 8


def test_the_budget_limits_the_default_and_holds_everything() -> None:
    slots = 3 * slot_bytes(FULL, GEOMETRY)
    limited = plan(slots + 7 * page_bytes(FULL, 8) + 1, None)
    assert limited.num_pages == 7
    assert limited.total == slots + 7 * page_bytes(FULL, 8) + 1500


def test_pages_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=rf"num_pages: 1000 pages of {page_bytes(FULL, 8)} bytes.*weights of 1000"):
        plan(3 * slot_bytes(FULL, GEOMETRY) + 999 * page_bytes(FULL, 8), 1000)
