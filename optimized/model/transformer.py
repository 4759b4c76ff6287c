"""The backbone's forward pass over flat rows: embedding, layers on the hyper-connected stream, head.

Knows the order of the sublayers; knows nothing about requests, sampling or how rows were chosen.
Source: V4.1 model specification §3, §8.
"""

from __future__ import annotations

from functools import partial

import torch

from optimized.model import attention, draft, engram
from optimized.model.caches import CacheGeometry, Caches
from optimized.model.rope import rope_frequencies
from optimized.model.selections import Selections
from optimized.model.step import Step, StepInputs, derive_step
from optimized.model.sublayers import attention_sublayer, ffn_sublayer, first_pre
from optimized.model.weights import ModelWeights
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
    ) -> None:
        """
        Args:
            token_map: [tokens] int64 compressed id of each token id; needed with Engram layers.
            drafts: keep the context that `propose` drafts from.
        """
        self.config = config
        self.weights = weights
        self._geometry = geometry
        self._token_map = token_map
        self._pad = 0 if token_map is None else int(token_map[config.engram_pad_token_id])
        self._drafts = drafts and weights.draft is not None
        self._frequencies = rope_frequencies(config, weights.embed.device)

    def forward(self, inputs: StepInputs, caches: Caches) -> torch.Tensor:
        """Run all rows, update the caches.

        Returns:
            logits [S, V] of the sample rows, carried in fp32 (float64 on the CPU).
        """
        config, weights = self.config, self.weights
        step = derive_step(inputs, config, self._geometry, self._frequencies)
        selections = Selections(config, step)
        ids = self._engram_ids(step, caches)
        h = weights.embed.index_select(0, inputs.tokens)[:, None].repeat(1, config.hc_mult, 1)
        pre, taps = first_pre(h), []
        for number, layer in enumerate(weights.layers):
            if layer.engram is not None and ids is not None:
                h = engram.remember(h, ids, layer.engram, config.rms_norm_eps)
            if self._drafts and number in config.dspark_target_layer_ids:
                taps.append(draft.tap(h))
            attend = partial(
                attention.attend,
                layer=number,
                weights=layer.attention,
                config=config,
                step=step,
                caches=caches,
                selections=selections,
            )
            h, pre = attention_sublayer(h, pre, layer, config, attend)
            if number == config.num_hidden_layers - 1:  # every row's keys are stored: only wanted rows go on
                h, pre = h.index_select(0, inputs.sample_rows), pre.index_select(0, inputs.sample_rows)
            h, pre = ffn_sublayer(h, pre, layer, config, config.num_experts_per_tok)
        if self._drafts and weights.draft is not None:
            draft.keep_context(taps, weights.draft, config, step, caches)
        x = hyper_connection_collapse(h, pre)
        return fp32_linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.head)

    def _engram_ids(self, step: Step, caches: Caches) -> torch.Tensor | None:
        if self._token_map is None:
            return None
        return engram.history(self._token_map[step.inputs.tokens], step, caches, self._pad)

    def propose(self, anchors: draft.Anchors, caches: Caches, choose: draft.Choose) -> draft.Draft:
        """Draft tokens after each anchor; `forward` must have run with `drafts` over the anchors' positions.

        Raises:
            ValueError: the checkpoint has no draft, or the model was made without it.
        """
        if self.weights.draft is None or not self._drafts:
            raise ValueError("this model was made without its draft")
        frequencies = self._frequencies.plain
        return draft.propose(
            anchors, self.weights, self.weights.draft, self.config, self._geometry, caches, frequencies, choose
        )
