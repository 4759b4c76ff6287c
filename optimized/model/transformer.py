"""The backbone's forward pass over flat rows: embedding, layers on the hyper-connected stream, head.

Knows the order of the sublayers, and where rows before a replay start leave; knows nothing about requests, sampling or
how rows were chosen.
Source: V4.1 model specification §3, §8.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from optimized.model import attention, draft, engram
from optimized.model.caches import CacheGeometry, Caches
from optimized.model.replay import RowState
from optimized.model.rope import rope_frequencies
from optimized.model.selections import Selections
from optimized.model.step import Step, StepInputs, derive_step
from optimized.model.sublayers import attention_input, attention_sublayer, ffn_sublayer, first_pre
from optimized.model.weights import DraftWeights, LayerWeights, ModelWeights
from optimized.ops.hyper_connection import hyper_connection_collapse
from optimized.ops.linear import fp32_linear
from optimized.ops.rms_norm import rms_norm
from reference.spec.config import ModelConfig


class Transformer:
    """The model with its weights. Caches are handed in, so that it holds no state between steps."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        token_map: torch.Tensor | None,
        geometry: CacheGeometry,
        drafts: bool = False,
        poison_padding: bool = False,
    ) -> None:
        """
        Args:
            token_map: [tokens] int64 compressed id of each token id; needed with Engram layers.
            drafts: keep the context that `propose` drafts from.
            poison_padding: padding rows are NaN from the embedding on, to show whether a row reads another.
        """
        self.config = config
        self.weights = weights
        self._geometry = geometry
        self._token_map = token_map
        self._pad = 0 if token_map is None else int(token_map[config.engram_pad_token_id])
        self._poison_padding = poison_padding
        self._drafts = drafts and weights.draft is not None
        self._frequencies = rope_frequencies(config, weights.embed.device)

    def forward(self, inputs: StepInputs, caches: Caches) -> torch.Tensor:
        """Run all rows, update the caches.

        Returns:
            logits [S, V] of the sample rows, carried in fp32 (float64 on the CPU).
        """
        config, weights = self.config, self.weights
        rows = self._first_rows(inputs, caches)
        for number, layer in enumerate(weights.layers):
            h, pre = rows.h, rows.pre
            if layer.engram is not None and rows.ids is not None:
                h = engram.remember(h, rows.ids, layer.engram, config.rms_norm_eps)
            if self._drafts and number in config.dspark_target_layer_ids:
                rows.taps.append(draft.tap(h))
            cut = number == config.decoder_start and inputs.kept is not None
            if cut:
                rows = self._drop_rows(dataclasses.replace(rows, h=h), number, layer, caches)
                h, pre = rows.h, rows.pre
            attend = partial(
                attention.attend,
                layer=number,
                weights=layer.attention,
                config=config,
                step=rows.step,
                caches=caches,
                selections=rows.selections,
                stored=cut,
            )
            h, pre = attention_sublayer(h, pre, layer, config, attend)
            if number == config.num_hidden_layers - 1:  # every row's keys are stored: only wanted rows go on
                wanted = rows.step.inputs.sample_rows
                h, pre = h.index_select(0, wanted), pre.index_select(0, wanted)
            h, pre = ffn_sublayer(h, pre, layer, config, config.num_experts_per_tok)
            rows = dataclasses.replace(rows, h=h, pre=pre)
        if self._drafts and weights.draft is not None:
            draft.keep_context(rows.taps, weights.draft, config, rows.step, caches)
        x = hyper_connection_collapse(rows.h, rows.pre)
        return fp32_linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.head)

    def _first_rows(self, inputs: StepInputs, caches: Caches) -> RowState:
        """All rows as they enter layer 0."""
        step = derive_step(inputs, self.config, self._geometry, self._frequencies)
        h = self.weights.embed.index_select(0, inputs.tokens)[:, None].repeat(1, self.config.hc_mult, 1)
        if self._poison_padding:
            h.masked_fill_((inputs.positions < 0)[:, None, None], torch.nan)
        return RowState(h, first_pre(h), self._engram_ids(step, caches), [], step, Selections(self.config, step))

    def _drop_rows(self, rows: RowState, number: int, layer: LayerWeights, caches: Caches) -> RowState:
        """Stores the layer's compressed KV and index keys for all rows; then the kept ones alone go on."""
        kept, config = rows.step.inputs.kept, self.config
        if kept is None or layer.attention.compressor is None:
            raise ValueError("rows are dropped at a layer that stores no compressed KV")
        x = attention_input(rows.h, rows.pre, layer, config)
        attention.store_compressed(x, layer.attention.compressor, config, rows.step, caches.sources[number])
        return rows.compacted(kept, config, self._geometry, self._frequencies)

    def _engram_ids(self, step: Step, caches: Caches) -> torch.Tensor | None:
        if self._token_map is None:
            return None
        return engram.history(self._token_map[step.inputs.tokens], step, caches, self._pad)

    def block_states(self, anchors: draft.Anchors, caches: Caches) -> draft.BlockStates:
        """The part of drafting after each anchor that no choice is needed for; `forward` must have run with `drafts`
        over the anchors' positions.

        Raises:
            ValueError: the checkpoint has no draft, or the model was made without it.
        """
        frequencies = self._frequencies.plain
        return draft.block_states(
            anchors, self.weights, self._draft_weights(), self.config, self._geometry, caches, frequencies
        )

    def choose_block(self, states: draft.BlockStates, before: torch.Tensor, choose: draft.Choose) -> draft.Draft:
        """The rest of drafting. before: [A] int64, the anchors' tokens."""
        return draft.choose_block(states, before, self._draft_weights(), choose)

    def propose(self, anchors: draft.Anchors, caches: Caches, choose: draft.Choose) -> draft.Draft:
        """Draft tokens after each anchor: `block_states`, then `choose_block`."""
        return self.choose_block(self.block_states(anchors, caches), anchors.tokens, choose)

    def _draft_weights(self) -> DraftWeights:
        if self.weights.draft is None or not self._drafts:
            raise ValueError("this model was made without its draft")
        return self.weights.draft
