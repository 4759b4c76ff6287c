"""Decode forward passes as CUDA graphs: captured once a shape, then replayed with one call.

A pass may be captured if it reads its inputs where the captured one read them and looks the same from the host; the
input batch sees to both. The first pass of a shape runs eagerly, which also makes what must exist before a capture
(lookup tables, kernels); what is captured after it computes the same bits. Knows the model's inputs and outputs; knows
nothing about plans or sampling.
"""

from __future__ import annotations

import dataclasses

import torch

from optimized.model.caches import Caches
from optimized.model.step import StepInputs
from optimized.model.transformer import Transformer
from optimized.worker.transfer import waits_allowed
from reference.spec.errors import EngineError

Shape = tuple[int, ...]
"""What the host knows of a decode step: rows, requests, pages a request, wanted rows, greatest position."""


class CapturedSteps:
    """The graphs of one model over one set of caches; they share their working memory, since one runs at a time."""

    def __init__(self, model: Transformer, caches: Caches, max_rows: int, stream: torch.cuda.Stream) -> None:
        """
        Args:
            max_rows: most rows of a decode step, its padding included. stream: to capture on, none is replayed there.
        """
        self._model, self._caches = model, caches
        device = model.weights.embed.device
        self._logits = torch.empty(max_rows, model.config.vocab_size, dtype=torch.float64, device=device)
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, list[int]]] = {}

    @staticmethod
    def planned_bytes(vocab_size: int, max_rows: int) -> int:
        """Bytes of the logits that all graphs write to."""
        return 8 * vocab_size * max_rows

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [S, V] of a decode step, a new tensor, as `Transformer.forward` gives them.

        Raises:
            EngineError: the inputs of this shape lie elsewhere than those that were captured.
        """
        shape = (
            len(inputs.positions),
            *inputs.page_table.shape,
            len(inputs.sample_rows),
            inputs.max_position,
        )
        if shape not in self._graphs:
            logits = self._model.forward(inputs, self._caches)
            with waits_allowed():
                self._graphs[shape] = self._capture(inputs)
            return logits
        graph, places = self._graphs[shape]
        if places != _places(inputs):
            raise EngineError(f"the inputs of a decode step of shape {shape} moved after it was captured")
        graph.replay()
        return self._logits[: len(inputs.sample_rows)].clone()

    def _capture(self, inputs: StepInputs) -> tuple[torch.cuda.CUDAGraph, list[int]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            self._logits[: len(inputs.sample_rows)].copy_(self._model.forward(inputs, self._caches))
        return graph, _places(inputs)


def _places(inputs: StepInputs) -> list[int]:
    """Addresses of all input tensors."""
    values = (getattr(inputs, field.name) for field in dataclasses.fields(inputs))
    return [value.data_ptr() for value in values if isinstance(value, torch.Tensor)]
