"""Which compressed entries each row attends to, shared by the layers of one forward pass.

Knows index sources and their selections; knows nothing about how entries are attended. Nothing here outlives a step.
Source: V4.1 model specification §4.5, §4.6.
"""

from __future__ import annotations

import torch

from optimized.model.caches import SourceCache
from optimized.model.rope import Rotation
from optimized.model.step import Step
from optimized.model.weights import IndexQueryWeights
from optimized.ops.index_scores import index_scores
from optimized.ops.linear import bf16_linear, linear
from optimized.ops.packed import Packed
from optimized.ops.quantize import quantize_mxfp4
from optimized.ops.rope import rope
from optimized.ops.selection import select_candidates, select_topk
from reference.spec.config import ModelConfig


class Selections:
    """The selections of one step, by index source, in entry numbers and as flat page entries."""

    def __init__(self, config: ModelConfig, step: Step) -> None:
        self._config = config
        self._step = step
        self._numbers: dict[int, torch.Tensor] = {}
        self._entries: dict[tuple[int, int], torch.Tensor] = {}
        self._candidates: torch.Tensor | None = None

    def compacted(self, step: Step, rows: torch.Tensor) -> Selections:
        """Selections of some of the rows, over the step that has only these. Candidates and page entries are keyed by
        the rows of the old step: they are made anew.

        Args:
            rows: [M] int64.
        """
        other = Selections(self._config, step)
        other._numbers = {source: number.index_select(0, rows) for source, number in self._numbers.items()}
        return other

    def entries(self, index_source: int, kv_source: int, cache: SourceCache) -> torch.Tensor:
        """[N, index_topk] flat entries of the KV source's pages, -1 = none."""
        key = (index_source, kv_source)
        if key not in self._entries:
            self._entries[key] = self._step.inputs.entry(self._numbers[index_source], cache.page_entries)
        return self._entries[key]

    def make(
        self,
        layer: int,
        weights: IndexQueryWeights,
        cache: SourceCache,
        x: torch.Tensor,
        latent: torch.Tensor,
        rotation: Rotation,
    ) -> None:
        """Select for an index source, from its attention input x [N, D] and query latent [N, q_lora]."""
        config, indices = self._config, self._step.ratios[cache.ratio]
        if indices.visible_limit <= config.index_topk:
            # No row sees more than it may select: the scores cannot matter, nor the candidates of later sources.
            number = torch.arange(config.index_topk, device=x.device)
            self._numbers[layer] = torch.where(number < indices.visible[:, None], number, -1)
            return
        scores = self._scores(weights, cache, x, latent, rotation)
        block = config.candidate_block_size
        if layer == config.candidate_source_layer_id:
            self._candidates = select_candidates(scores, indices.visible, block, config.candidate_topk_blocks)
        candidates = self._candidates if config.uses_candidates(layer) else None
        self._numbers[layer] = select_topk(scores, indices.visible, config.index_topk, candidates, block)

    def _scores(
        self,
        weights: IndexQueryWeights,
        cache: SourceCache,
        x: torch.Tensor,
        latent: torch.Tensor,
        rotation: Rotation,
    ) -> torch.Tensor:
        config, inputs = self._config, self._step.inputs
        heads, width = config.index_n_heads, config.index_head_dim
        queries = rope(linear(latent, weights.query).view(-1, heads, width), *rotation)
        scale = width**-0.5 * heads**-0.5
        head_weights = bf16_linear(x, weights.head_weight)
        visible = self._step.ratios[cache.ratio].visible
        packed = Packed(*quantize_mxfp4(queries))
        return index_scores(
            packed,
            head_weights,
            scale,
            cache.keys,
            inputs.page_table,
            inputs.row_request,
            inputs.query_start,
            visible,
        )
