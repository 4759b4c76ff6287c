"""A rank's worker: loads a folder's weights, plans its memory, owns the caches, executes step plans.

Knows files, options and the model runner; knows nothing about requests, scheduling or sampling.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.model.caches import CacheGeometry, Caches
from optimized.model.draft import Choose, Draft
from optimized.model.transformer import Transformer
from optimized.model.weights import load_weights, planned_bytes
from optimized.worker.captured_steps import CapturedSteps
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.input_batch import InputBatch, Prepared, bucket_rows
from optimized.worker.memory import MemoryPlan, available_bytes, device_overhead, plan_memory, sequence_pages
from optimized.worker.model_runner import ModelRunner
from optimized.worker.step_timer import time_steps
from reference.spec.config import ModelConfig
from reference.spec.errors import ConfigError
from reference.spec.tensors import tensor_plan
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
        self._config, self._folder, self._device, self._max_model_len = config, folder, device, max_model_len
        _check_page_size(model_config, config.page_size)
        geometry = CacheGeometry.of(model_config, config.page_size, config.max_num_seqs + 1, num_pages=2)
        max_pages = sequence_pages(max_model_len, geometry)
        scratch = InputBatch.planned_bytes(max_rows, config.max_num_seqs, max_pages, config.nextn)
        if config.verification == "ratio":
            scratch += 8 * geometry.num_slots * config.nextn * model_config.vocab_size  # what drafts were drawn from
        capture_stream: torch.cuda.Stream | None = None
        most_rows = bucket_rows(config.max_num_seqs * (config.nextn + 1))
        most_blocks = bucket_rows(config.max_num_seqs) if config.nextn else 0
        if device.type == "cuda":
            torch.cuda.set_device(device)
            if not config.enforce_eager:
                capture_stream = torch.cuda.Stream(device)
                scratch += CapturedSteps.planned_bytes(model_config, most_rows, most_blocks)
        # The experts of a layer are stacked on the device: it has fewer tensors than the checkpoint, caches included.
        weight_bytes, tensors = planned_bytes(model_config), len(tensor_plan(model_config))
        overhead = device_overhead(device, capture_stream, weight_bytes, tensors)
        self._memory_plan = plan_memory(
            model_config,
            geometry,
            max_model_len,
            weights=weight_bytes,
            scratch=scratch,
            overhead=overhead,
            budget=int(available_bytes(device) * config.gpu_memory_utilization),
            asked=config.num_pages,
        )
        _log.info("%s: memory plan %s", folder, self._memory_plan.describe())
        weights = load_weights(folder, model_config, device)
        token_map = None
        if model_config.engram_layer_ids:
            token_map = torch.from_numpy(checked_token_map(folder / "tokenizer.json", model_config)).to(device)
        geometry = dataclasses.replace(geometry, num_pages=self._memory_plan.num_pages)
        caches = Caches.allocate(model_config, geometry, device)
        compact = config.yoco_mode == "compact"
        batch = InputBatch(
            max_rows, config.max_num_seqs, max_pages, config.page_size, device, nextn=config.nextn, compact=compact
        )
        model = Transformer(
            model_config, weights, token_map, geometry, drafts=config.nextn > 0, poison_padding=config.poison_unused
        )
        captured = None
        if capture_stream is not None:
            captured = CapturedSteps(model, caches, most_rows, most_blocks, capture_stream)
        self._runner = ModelRunner(model, caches, batch, captured)

    def num_pages(self) -> int:
        """Pages of the pool, page 0 included."""
        return self._memory_plan.num_pages

    @property
    def memory_plan(self) -> MemoryPlan:
        """The bytes that were planned before anything was allocated."""
        return self._memory_plan

    def prepare(
        self,
        plan: StepPlan,
        more_rows: NDArray[np.int64] | None = None,
        limits: BlockLimits | None = None,
        previous: BlockResults | None = None,
    ) -> Prepared:
        """A step's inputs, in buffers that the next step's take.

        Args:
            more_rows: [E] flat rows of a prefill plan whose logits are wanted too.
            limits: what bounds the drafts of a decode plan; None: the plan alone.
            previous: results of the step in flight; needed if this plan leaves tokens open.
        """
        return self._runner.prepare(plan, more_rows, limits, previous)

    def forward(self, step: Prepared) -> torch.Tensor:
        """Logits [step.wanted, V] (float64 on the CPU): of a decode step those of all its rows, of a prefill step those
        of the plan's sampled rows, in the plan's order, then of E more."""
        return self._runner.forward(step)

    def execute(self, plan: StepPlan, more_rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        """Logits of a step of which everything is on the host, see `forward`."""
        return self.forward(self.prepare(plan, more_rows))

    def propose(
        self, step: Prepared, places: torch.Tensor, tokens: torch.Tensor, accepted: torch.Tensor, choose: Choose
    ) -> Draft:
        """Drafts for some requests of a step after its forward pass, before another one's.

        Args:
            places: [A] int64 indices of requests in its plan. tokens: [A] the newest token of each. accepted: [A] how
                many of its drafts were kept. choose: draws the drafts, slot after slot.
        """
        return self._runner.propose(step, places, tokens, accepted, choose)

    def time_steps(self, rows: int, repeats: int) -> list[float]:
        """Milliseconds of each of so many decode steps of `rows` rows, drafting included."""
        config = self._config
        return time_steps(self._runner, rows, repeats, config.nextn, self._max_model_len, config.page_size)

    def fingerprint(self) -> dict[str, str]:
        """What the time of a step depends on besides the options: the model's files, the device, torch."""
        digest = hashlib.sha256((self._folder / "config.json").read_bytes())
        for path in sorted(self._folder.glob("*.safetensors")):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        cuda = self._device.type == "cuda"
        device = torch.cuda.get_device_name(self._device) if cuda else f"{platform.machine()} x {os.cpu_count()}"
        return {"model": digest.hexdigest(), "hardware": device, "torch": torch.__version__}

    def poison(self, used_slots: NDArray[np.int64], used_pages: NDArray[np.int64]) -> None:
        """Fill every slot and page but the used ones with NaN codes. used_slots, used_pages: [n], without 0."""
        self._runner.poison(used_slots, used_pages)


def _check_page_size(config: ModelConfig, page_size: int) -> None:
    for layer in config.kv_source_layer_ids:
        ratio = config.compress_ratios[layer]
        if page_size % ratio:
            raise ConfigError(f"page_size: got {page_size}; accepted: a multiple of layer {layer}'s ratio {ratio}")
