"""Decode forward passes and draft blocks as CUDA graphs: captured at a shape's first pass, then replayed with one call.

A pass may be captured if it reads its inputs where the captured one read them and looks the same from the host; the
input batch sees to both. The pass that has no graph yet runs eagerly, which also makes what must exist before a capture
(lookup tables, kernels); what is captured after it computes the same bits. The graphs that were used last are kept.
Knows the model's inputs and outputs; knows nothing about plans or sampling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch

from optimized.model.caches import Caches
from optimized.model.draft import Anchors, BlockStates
from optimized.model.step import StepInputs
from optimized.model.transformer import Transformer
from optimized.worker.transfer import waits_allowed
from reference.spec.config import ModelConfig
from reference.spec.errors import EngineError

Shape = tuple[str | int, ...]
"""What the host knows of a pass."""

MOST_GRAPHS = 128
"""Kept at one time: a graph holds memory of the driver's, and there are many shapes."""

Result = TypeVar("Result")


class CapturedSteps:
    """The graphs of one model over one set of caches; they share their working memory, since one runs at a time."""

    def __init__(
        self, model: Transformer, caches: Caches, max_rows: int, max_blocks: int, stream: torch.cuda.Stream
    ) -> None:
        """
        Args:
            max_rows: most rows of a decode step, its padding included. max_blocks: most draft blocks at one time, 0
                without drafting. stream: to capture on; none is replayed there.
        """
        self._model, self._caches = model, caches
        config, device = model.config, model.weights.embed.device
        block, vocab = config.dspark_block_size, config.vocab_size
        self._logits = torch.empty(max_rows, vocab, dtype=torch.float64, device=device)
        self._anchors = torch.zeros(4, max_blocks, dtype=torch.int64, device=device)
        self._states = BlockStates(
            torch.empty(max_blocks, block, config.hidden_size, dtype=torch.bfloat16, device=device),
            torch.empty(max_blocks, block, vocab, dtype=torch.float64, device=device),
        )
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, list[int]]] = {}

    @staticmethod
    def planned_bytes(config: ModelConfig, max_rows: int, max_blocks: int) -> int:
        """Bytes of what all graphs write to, and of the anchors that they read."""
        drafts = config.dspark_block_size * (8 * config.vocab_size + 2 * config.hidden_size)
        return 8 * config.vocab_size * max_rows + (drafts + 4 * 8) * max_blocks

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Logits [S, V] of a decode step, a new tensor, as `Transformer.forward` gives them.

        Raises:
            EngineError: the inputs of this shape lie elsewhere than those that were captured.
        """
        logits = self._logits[: len(inputs.sample_rows)]
        sizes = len(inputs.positions), *inputs.page_table.shape, len(inputs.sample_rows), inputs.max_position
        return self._run(
            ("forward", *sizes),
            inputs,
            lambda: self._model.forward(inputs, self._caches),
            logits.copy_,
            logits.clone,
        )

    def block_states(self, anchors: Anchors, bucket: int) -> BlockStates:
        """As `Transformer.block_states` gives them, new tensors.

        Args:
            bucket: blocks that are computed, at least as many as there are anchors.
        """
        count, buffers = len(anchors.tokens), self._anchors[:, :bucket]
        fields = (anchors.tokens, anchors.positions, anchors.slots, anchors.replay_starts)
        for buffer, values in zip(buffers, fields, strict=True):
            buffer[:count].copy_(values)
        buffers[:, count:].zero_()
        buffers[1, count:].fill_(-1)
        padded, states = Anchors(*buffers), BlockStates(*(one[:bucket] for one in self._states))

        def keep(made: BlockStates) -> None:
            for one, values in zip(states, made, strict=True):
                one.copy_(values)

        made = self._run(
            ("draft", bucket),
            padded,
            lambda: self._model.block_states(padded, self._caches),
            keep,
            lambda: BlockStates(*(one.clone() for one in states)),
        )
        return BlockStates(*(one[:count] for one in made))

    def _run(
        self,
        shape: Shape,
        inputs: StepInputs | Anchors,
        compute: Callable[[], Result],
        keep: Callable[[Result], object],
        kept: Callable[[], Result],
    ) -> Result:
        """The result of a pass, computed now if there is no graph of its shape. keep: what a graph does with it.

        The graph that was replayed longest ago makes room for a new one.
        """
        known = self._graphs.pop(shape, None)
        if known is None:
            result = compute()
            with waits_allowed():
                while len(self._graphs) >= MOST_GRAPHS:
                    del self._graphs[next(iter(self._graphs))]
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                    keep(compute())
            self._graphs[shape] = (graph, _places(inputs))
            return result
        self._graphs[shape] = known
        graph, places = known
        if places != _places(inputs):
            raise EngineError(f"the inputs of a pass of shape {shape} moved after it was captured")
        graph.replay()
        return kept()


def _places(inputs: StepInputs | Anchors) -> list[int]:
    """Addresses of all input tensors."""
    values = (getattr(inputs, field.name) for field in dataclasses.fields(inputs))
    return [value.data_ptr() for value in values if isinstance(value, torch.Tensor)]
