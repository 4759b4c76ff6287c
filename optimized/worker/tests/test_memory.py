"""The memory plan: bytes a page and a slot take, and what happens when they do not fit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from optimized.model.caches import CacheGeometry, Caches, page_bytes, slot_bytes
from optimized.model.tests.random_models import CONFIGS, FULL
from optimized.worker.memory import plan_pages
from reference.spec.config import ModelConfig
from reference.spec.errors import ConfigError

pytestmark = pytest.mark.ci

GEOMETRY = CacheGeometry(num_pages=5, page_size=8, num_slots=3, window=8, max_ngram=3, backtrack=4)


def allocated_bytes(caches: Caches) -> int:
    tensors = [*(tensor for ring in caches.rings for tensor in ring), caches.engram_ids]
    for source in caches.sources.values():
        tensors += [*source.kv, *source.keys]
        tensors += [] if source.open_group is None else [source.open_group]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("name", CONFIGS)
def test_planned_bytes_are_the_allocated_ones(name: str) -> None:
    config = CONFIGS[name]
    caches = Caches.allocate(config, GEOMETRY, torch.device("cpu"))
    assert allocated_bytes(caches) == 5 * page_bytes(config, 8) + 3 * slot_bytes(config, GEOMETRY)


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


def plan(budget: int, asked: int | None, config: ModelConfig = FULL) -> int:
    return plan_pages(config, GEOMETRY, sequences=2, max_model_len=60, budget=budget, asked=asked)


def test_by_default_every_sequence_fits_at_full_length() -> None:
    assert plan(1 << 30, None) == 1 + 2 * 8


def test_the_budget_limits_the_default() -> None:
    slots = 3 * slot_bytes(FULL, GEOMETRY)
    assert plan(slots + 7 * page_bytes(FULL, 8), None) == 7


def test_pages_that_do_not_fit_are_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=rf"num_pages: 1000 pages of {page_bytes(FULL, 8)} bytes"):
        plan(3 * slot_bytes(FULL, GEOMETRY) + 999 * page_bytes(FULL, 8), 1000)
