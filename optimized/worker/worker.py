"""A rank's worker: loads a folder's weights, plans its memory, owns the caches, executes step plans.

Knows files, options and the model runner; knows nothing about requests, scheduling or sampling.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from optimized.model.caches import CacheGeometry, Caches
from optimized.model.transformer import Transformer
from optimized.model.weights import load_weights
from optimized.worker.input_batch import InputBatch
from optimized.worker.memory import available_bytes, plan_pages
from optimized.worker.model_runner import ModelRunner
from reference.spec.config import ModelConfig
from reference.spec.errors import ConfigError
from reference.spec.token_map import checked_token_map

if TYPE_CHECKING:
    from optimized._core import StepPlan
    from optimized.config import EngineConfig

_log = logging.getLogger(__name__)


class Worker:
    """What the engine drives: one model in one set of caches."""

    def __init__(self, folder: str | Path, config: EngineConfig) -> None:
        """
        Args:
            folder: config.json, weights, and tokenizer.json where the model has Engram layers.
            config: resolved for this model, so that every length is a number.
        Raises:
            CheckpointError: the weights or the tokenizer are not what config.json asks for.
            ConfigError: an option does not fit the model or the memory.
        """
        folder = Path(folder)
        model_config = ModelConfig.from_file(folder / "config.json")
        device = torch.device(config.device)
        max_model_len = config.max_model_len or model_config.max_position_embeddings
        max_rows = config.max_num_batched_tokens or max_model_len
        _check_page_size(model_config, config.page_size)
        budget = int(available_bytes(device) * config.gpu_memory_utilization)
        weights = load_weights(folder, model_config, device)
        token_map = None
        if model_config.engram_layer_ids:
            token_map = torch.from_numpy(checked_token_map(folder / "tokenizer.json", model_config)).to(device)
        geometry = _geometry(model_config, config.page_size, config.max_num_seqs + 1, num_pages=2)
        budget = min(budget, int(available_bytes(device) * config.gpu_memory_utilization))
        pages = plan_pages(model_config, geometry, config.max_num_seqs, max_model_len, budget, config.num_pages)
        geometry = _geometry(model_config, config.page_size, config.max_num_seqs + 1, pages)
        self._num_pages = pages
        caches = Caches.allocate(model_config, geometry, device)
        max_pages = -(-(max_model_len + geometry.backtrack) // config.page_size)
        batch = InputBatch(max_rows, config.max_num_seqs, max_pages, device)
        self._runner = ModelRunner(Transformer(model_config, weights, token_map, geometry), caches, batch)
        _log.info("%s: %d pages of %d tokens, %d state slots", folder, pages, config.page_size, geometry.num_slots)

    def num_pages(self) -> int:
        """Pages of the pool, page 0 included."""
        return self._num_pages

    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits [S, V] of the plan's sampled rows, in the plan's order (float64 on the CPU)."""
        return self._runner.execute(plan)


def _check_page_size(config: ModelConfig, page_size: int) -> None:
    for layer in config.kv_source_layer_ids:
        ratio = config.compress_ratios[layer]
        if page_size % ratio:
            raise ConfigError(f"page_size: got {page_size}; accepted: a multiple of layer {layer}'s ratio {ratio}")


def _geometry(config: ModelConfig, page_size: int, num_slots: int, num_pages: int) -> CacheGeometry:
    backtrack = config.dspark_block_size + 1
    return CacheGeometry(
        num_pages, page_size, num_slots, config.sliding_window, config.engram_max_ngram_size, backtrack
    )
