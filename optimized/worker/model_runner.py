"""Runs the model on one step: fresh slots are cleared, inputs filled, the forward pass made, drafts proposed.

Knows inputs, caches and the model; knows nothing about files, memory planning or sampling. Nothing here waits for the
device: what a step needs from the step before it is read where it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.model.caches import Caches
from optimized.model.draft import Anchors, Choose, Draft
from optimized.model.step import StepInputs
from optimized.model.transformer import Transformer
from optimized.worker.captured_steps import CapturedSteps
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.input_batch import InputBatch, Prepared, bucket_rows
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
            captured: runs the forward passes of decode steps and draft blocks; None: they run eagerly.
        """
        self._model = model
        self._captured = captured
        self._caches = caches
        self._batch = batch
        self._device = model.weights.embed.device

    @torch.inference_mode()
    def prepare(
        self,
        plan: StepPlan,
        more_rows: NDArray[np.int64] | None = None,
        limits: BlockLimits | None = None,
        previous: BlockResults | None = None,
    ) -> Prepared:
        """Clears fresh slots and fills the inputs of a step, see `InputBatch.fill`."""
        fresh = np.flatnonzero(plan.fresh)
        if len(fresh):
            slots = np.asarray(plan.slots, dtype=np.int64)[fresh]
            self._caches.clear_slots(upload(slots, self._device))
        return self._batch.fill(plan, more_rows, limits, previous)

    @torch.inference_mode()
    def forward(self, step: Prepared) -> torch.Tensor:
        """Logits [step.wanted, V] (float64 on the CPU) of the step that was prepared last."""
        if not len(step.inputs.tokens):
            return torch.empty(0, self._model.config.vocab_size, dtype=torch.float64, device=self._device)
        decodes = step.inputs.query_start is None
        forward = self._captured.forward if self._captured is not None and decodes else self._forward
        return forward(step.inputs)[: step.wanted]

    def _forward(self, inputs: StepInputs) -> torch.Tensor:
        return self._model.forward(inputs, self._caches)

    @torch.inference_mode()
    def propose(
        self, step: Prepared, places: torch.Tensor, tokens: torch.Tensor, accepted: torch.Tensor, choose: Choose
    ) -> Draft:
        """Drafts for some requests of the step whose forward pass was made last.

        Args:
            places: [A] int64 indices of requests in its plan. tokens: [A] the newest token of each. accepted: [A] how
                many of its drafts were kept.
        """
        anchors = Anchors(tokens, step.anchors[places] + accepted, step.slots[places], step.replay_starts[places])
        if self._captured is None:
            return self._model.propose(anchors, self._caches, choose)
        states = self._captured.block_states(anchors, bucket_rows(len(tokens)))
        return self._model.choose_block(states, tokens, choose)

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
