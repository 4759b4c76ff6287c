"""Runs the model on one step: fresh slots are cleared, inputs filled, the forward pass made.

Knows inputs, caches and the model; knows nothing about files, memory planning or sampling. Nothing here waits for the
device: what a step needs from the step before it is read where it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.model.caches import Caches
from optimized.model.transformer import Transformer
from optimized.worker.captured_steps import CapturedSteps
from optimized.worker.input_batch import InputBatch
from optimized.worker.transfer import upload

if TYPE_CHECKING:
    from optimized._core import StepPlan


class ModelRunner:
    """One model over one set of caches."""

    def __init__(
        self, model: Transformer, caches: Caches, batch: InputBatch, captured: CapturedSteps | None = None
    ) -> None:
        """
        Args:
            captured: runs the forward passes of decode steps; None: they run eagerly.
        """
        self._model = model
        self._captured = captured
        self._caches = caches
        self._batch = batch
        self._device = model.weights.embed.device

    @torch.inference_mode()
    def execute(
        self, plan: StepPlan, more_rows: NDArray[np.int64] | None = None, previous: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [S + E, V] of the plan's sampled rows, in the plan's order, then of E more (float64 on the CPU).

        Args:
            more_rows: [E] flat rows of a prefill plan.
            previous: [R'] int64 tokens of the step in flight, see `InputBatch.fill`.
        """
        fresh = np.flatnonzero(plan.fresh)
        if len(fresh):
            slots = np.asarray(plan.slots, dtype=np.int64)[fresh]
            self._caches.clear_slots(upload(slots, self._device))
        if not plan.num_rows:
            return torch.empty(0, self._model.config.vocab_size, dtype=torch.float64, device=self._device)
        inputs = self._batch.fill(plan, more_rows, previous)
        if self._captured is not None and plan.kind == "decode":
            logits = self._captured.forward(inputs)
        else:
            logits = self._model.forward(inputs, self._caches)
        return logits[: np.count_nonzero(plan.sample_rows >= 0) + (0 if more_rows is None else len(more_rows))]

    @torch.inference_mode()
    def poison(self, used_slots: np.ndarray, used_pages: np.ndarray) -> None:
        """Fill every slot and page but the used ones with NaN codes.

        Args:
            used_slots, used_pages: [n] integers, without 0.
        """
        geometry = self._caches.geometry
        slots = np.delete(np.arange(geometry.num_slots), used_slots)
        pages = np.delete(np.arange(geometry.num_pages), used_pages)
        self._caches.poison(upload(slots, self._device), upload(pages, self._device))
