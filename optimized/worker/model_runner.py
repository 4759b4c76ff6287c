"""Runs the model on one step: fresh slots are cleared, inputs filled, the forward pass made.

Knows inputs, caches and the model; knows nothing about files, memory planning or sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from optimized.model.caches import Caches
from optimized.model.transformer import Transformer
from optimized.worker.input_batch import InputBatch

if TYPE_CHECKING:
    from optimized._core import StepPlan


class ModelRunner:
    """One model over one set of caches."""

    def __init__(self, model: Transformer, caches: Caches, batch: InputBatch) -> None:
        self._model = model
        self._caches = caches
        self._batch = batch
        self._device = model.weights.embed.device

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> torch.Tensor:
        """Logits [S, V] of the plan's sampled rows, in the plan's order (float64 on the CPU)."""
        fresh = np.flatnonzero(plan.fresh)
        if len(fresh):
            slots = np.asarray(plan.slots, dtype=np.int64)[fresh]
            self._caches.clear_slots(torch.from_numpy(slots).to(self._device))
        if not plan.num_rows:
            return torch.empty(0, self._model.config.vocab_size, dtype=torch.float64, device=self._device)
        return self._model.forward(self._batch.fill(plan), self._caches)
