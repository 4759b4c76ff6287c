"""The backbone's forward pass over flat rows: embedding, layers on the hyper-connected stream, head.

Knows the order of the sublayers; knows nothing about requests, sampling or how rows were chosen.
Source: V4.1 model specification §3, §8.
"""

from __future__ import annotations

import torch

from optimized.model import attention, engram, moe
from optimized.model.caches import CacheGeometry, Caches
from optimized.model.rope import rope_frequencies
from optimized.model.selections import Selections
from optimized.model.step import Step, StepInputs, derive_step
from optimized.model.weights import HyperConnectionWeights, LayerWeights, ModelWeights
from optimized.ops.hyper_connection import hyper_connection_collapse, hyper_connection_expand, hyper_connection_mix
from optimized.ops.linear import fp32_linear
from optimized.ops.rms_norm import rms_norm
from reference.spec.config import ModelConfig


class Transformer:
    """The model with its weights. Caches are handed in, so that it holds no state between steps."""

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, token_map: torch.Tensor | None, geometry: CacheGeometry
    ) -> None:
        """
        Args:
            token_map: [tokens] int64 compressed id of each token id; needed with Engram layers.
        """
        self.config = config
        self.weights = weights
        self._geometry = geometry
        self._token_map = token_map
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
        pre = torch.zeros(h.shape[:2], dtype=torch.float64, device=h.device)
        pre[:, 0] = 1.0
        for number, layer in enumerate(weights.layers):
            if layer.engram is not None and ids is not None:
                h = engram.remember(h, ids, layer.engram, config.rms_norm_eps)
            h, pre = self._attention_sublayer(h, pre, number, layer, step, caches, selections)
            h, pre = self._ffn_sublayer(h, pre, layer)
        rows = inputs.sample_rows
        x = hyper_connection_collapse(h.index_select(0, rows), pre.index_select(0, rows))
        return fp32_linear(rms_norm(x, weights.norm, config.rms_norm_eps), weights.head)

    def _engram_ids(self, step: Step, caches: Caches) -> torch.Tensor | None:
        if self._token_map is None:
            return None
        pad = int(self.config.engram_pad_token_id)
        return engram.history(self._token_map[step.inputs.tokens], step, caches, int(self._token_map[pad]))

    def _attention_sublayer(
        self,
        h: torch.Tensor,
        pre: torch.Tensor,
        number: int,
        layer: LayerWeights,
        step: Step,
        caches: Caches,
        selections: Selections,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream after attention, and the pre-mix that the next sublayer collapses with."""
        own_pre, post, comb = self._mix(h, layer.attention_mix)
        x = rms_norm(hyper_connection_collapse(h, pre), layer.attention_norm, self.config.rms_norm_eps)
        y = attention.attend(x, number, layer.attention, self.config, step, caches, selections)
        return hyper_connection_expand(y, h, post, comb), own_pre

    def _ffn_sublayer(
        self, h: torch.Tensor, pre: torch.Tensor, layer: LayerWeights
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own_pre, post, comb = self._mix(h, layer.ffn_mix)
        x = rms_norm(hyper_connection_collapse(h, pre), layer.ffn_norm, self.config.rms_norm_eps)
        y = moe.mixture(x, layer.moe, self.config, self.config.num_experts_per_tok)
        return hyper_connection_expand(y, h, post, comb), own_pre

    def _mix(self, h: torch.Tensor, weights: HyperConnectionWeights) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        config = self.config
        return hyper_connection_mix(
            h,
            weights.fn,
            weights.scale,
            weights.base,
            config.rms_norm_eps,
            config.hc_eps,
            config.hc_sinkhorn_iters,
        )
