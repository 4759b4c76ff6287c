"""The whole backbone over one sequence: no cache, every row from the tokens alone.

Knows the order of the sublayers and what they hand to each other; the arithmetic is theirs. Leading axes, written
``...``, are independent sequences of one length (training uses them). Source: V4.1 model specification §3, §4.9, §8.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from reference.model import attention, compressor, draft, engram, hyper_connections, indexer, linear, moe, norm, rope
from reference.model.trace import Trace
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig
from reference.spec.engram import EngramLayout


class ReferenceModel:
    """DeepSeek-V4.1 as plain tensor expressions.

    Args:
        config: the checkpoint's configuration.
        weights: dequantised values by tensor name (``reference.checkpoint.load_checkpoint``), float32.
        token_map: int64 [vocab], compressed id of every token; None without Engram layers.
        numerics: where and whether to round.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor],
        token_map: Tensor | None = None,
        numerics: Numerics | None = None,
    ) -> None:
        self.config = config
        self.numerics = numerics or Numerics()
        device = weights["embed.weight"].device
        self.token_map = None if token_map is None else token_map.to(device)
        self.pad = 0 if token_map is None else int(token_map[config.engram_pad_token_id])
        ratios = {*config.compress_ratios[: config.num_hidden_layers], 0}
        self.frequencies = {ratio: rope.layer_frequencies(config, ratio).to(device) for ratio in ratios}
        self.hashes = _hash_tensors(config, device)
        self._set_weights(weights)

    def _set_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = Weights({name: value.to(self.numerics.compute_dtype) for name, value in weights.items()})

    def with_weights(self, weights: Mapping[str, Tensor]) -> ReferenceModel:
        """The same model over other weight values, such as those of the next training step."""
        other = copy.copy(self)
        other._set_weights(weights)
        return other

    def forward(self, tokens: Tensor, replay_start: int = 0, trace: dict[str, Tensor] | None = None) -> Tensor:
        """Logits of every position.

        Args:
            tokens: int64 [..., T], T >= 1.
            replay_start: s; from the last KV source on, windows hold no position before s, and rows before s are
                meaningless (bounded replay, §10).
            trace: filled with named intermediates where given (``reference.model.trace``).
        Returns: [..., T, V] in the compute dtype, not rounded.
        """
        z = self.hidden(tokens, replay_start, trace)  # [..., T, D]
        return self.logits(z)  # [..., T, V]

    def logits(self, z: Tensor) -> Tensor:
        """Vocabulary logits of normalised final rows: [..., D] -> [..., V]."""
        return linear.fp32_linear(z, self.weights["head"])  # [..., V]

    def embed(self, tokens: Tensor) -> Tensor:
        """Token embeddings copied into every stream: [..., T] -> [..., T, C, D]."""
        e = self.weights["embed"][tokens]  # [..., T, D]
        return e[..., None, :].expand(*e.shape[:-1], self.config.hc_mult, e.shape[-1])  # [..., T, C, D]

    def hidden(self, tokens: Tensor, replay_start: int = 0, trace: dict[str, Tensor] | None = None) -> Tensor:
        """Normalised final rows: tokens [..., T] -> [..., T, D]."""
        config, numerics, notes = self.config, self.numerics, Trace(trace)
        positions = torch.arange(tokens.shape[-1], device=tokens.device)  # [T]
        h = self.embed(tokens)  # [..., T, C, D]
        pre = hyper_connections.initial_pre(h)  # [..., T, C]
        context = SharedRows()
        taps = []
        for layer in range(config.num_hidden_layers):
            weights = self.weights.at(f"layers.{layer}")
            if layer in config.engram_layer_ids:
                rows = self.engram_rows(tokens, layer)  # [..., T, columns]
                h = engram.add(h, rows, weights.at("engram"), config, numerics)  # [..., T, C, D]
                notes.engram(layer, rows, h)
            if layer in config.dspark_target_layer_ids:
                taps.append(draft.tap(h, numerics))  # [..., T, D]
            start = replay_start if layer >= config.decoder_start else 0
            h, pre = self.layer(layer, h, pre, positions, start, context, notes)  # [..., T, C, D], [..., T, C]
        if taps:
            notes.note("dspark_taps", torch.cat(taps, dim=-1))  # [..., T, targets·D]
        x = hyper_connections.collapse(h, pre, numerics)  # [..., T, D]
        z = norm.rms_norm(x, self.weights["norm"], config.rms_norm_eps, numerics)  # [..., T, D]
        notes.note("hidden_final", z)
        return z

    def engram_rows(self, tokens: Tensor, layer: int) -> Tensor:
        """Engram table rows: tokens [..., T] -> int64 [..., T, columns]."""
        if self.token_map is None:
            raise ValueError("a model with Engram layers needs a token_map")
        return engram.hash_rows(self.token_map[tokens], self.pad, *self.hashes[layer])  # [..., T, columns]

    def layer(
        self, layer: int, h: Tensor, pre: Tensor, positions: Tensor, start: int, context: SharedRows, notes: Trace
    ) -> tuple[Tensor, Tensor]:
        """Attention and MoE of one layer around the streams; ``pre`` collapses the first, the mixes hand on theirs.

        Args: h [..., T, C, D]; pre [..., T, C]; positions [T]; start: first position a window may hold.
        Returns: streams [..., T, C, D] and the next layer's pre [..., T, C].
        """
        config, numerics = self.config, self.numerics
        weights = self.weights.at(f"layers.{layer}")
        mix_attn = hyper_connections.mix(h, *weights.mixing("attn"), config)
        u = hyper_connections.collapse(h, pre, numerics)  # [..., T, D]
        x = norm.rms_norm(u, weights["attn_norm"], config.rms_norm_eps, numerics)  # [..., T, D]
        y = self.attend(layer, x, positions, start, context, notes)  # [..., T, D]
        h = hyper_connections.expand(y, h, mix_attn.post, mix_attn.comb, numerics)  # [..., T, C, D]
        notes.attention(layer, mix_attn, x, y, h)
        mix_ffn = hyper_connections.mix(h, *weights.mixing("ffn"), config)
        u = hyper_connections.collapse(h, mix_attn.pre, numerics)  # [..., T, D]
        x = norm.rms_norm(u, weights["ffn_norm"], config.rms_norm_eps, numerics)  # [..., T, D]
        routing = moe.route(x, config.num_experts_per_tok, weights.at("ffn.gate"), config)
        y = moe.moe(x, routing, weights.at("ffn"), config, numerics)  # [..., T, D]
        h = hyper_connections.expand(y, h, mix_ffn.post, mix_ffn.comb, numerics)  # [..., T, C, D]
        notes.ffn(layer, mix_ffn, routing, config.num_experts_per_tok, y, h)
        return h, mix_ffn.pre

    def attend(self, layer: int, x: Tensor, positions: Tensor, start: int, context: SharedRows, notes: Trace) -> Tensor:
        """Attention of one layer, in the order of §4.9: [..., T, D] -> [..., T, D]."""
        config, numerics = self.config, self.numerics
        ratio = config.compress_ratios[layer]
        frequencies = self.frequencies[ratio]
        weights = self.weights.at(f"layers.{layer}.attn")
        qr = attention.query_latent(x, weights, config, numerics)  # [..., T, q_lora]
        q = attention.queries(qr, positions, frequencies, weights, config, numerics)  # [..., T, H, d]
        keys = attention.window_kv(x, positions, frequencies, weights, config, numerics)  # [..., T, d]
        notes.queries(layer, qr, q, keys)
        visible = attention.window_mask(positions, config.sliding_window, start)  # [T, T]
        visible = visible.expand(*keys.shape[:-1], -1)  # [..., T, T]
        if config.is_kv_source(layer):
            self._store(layer, x, ratio, context, notes)
        if config.is_index_source(layer):
            self._select(layer, x, qr, positions, ratio, context, notes)
        if ratio:
            keys = torch.cat((keys, context.compressed), dim=-2)  # [..., T+n, d]
            visible = torch.cat((visible, context.selected), dim=-1)  # [..., T, T+n]
        o = attention.core(q, keys, visible, weights["attn_sink"], numerics)  # [..., T, H, d]
        o = rope.rotate(o, positions[:, None], frequencies, numerics, inverse=True)  # [..., T, H, d]
        notes.note(f"L{layer}.attn_core", o)
        return attention.project(o, weights, config, numerics)  # [..., T, D]

    def _store(self, layer: int, x: Tensor, ratio: int, context: SharedRows, notes: Trace) -> None:
        config, numerics, frequencies = self.config, self.numerics, self.frequencies[ratio]
        weights = self.weights.at(f"layers.{layer}.attn")
        latents = compressor.latent(x, ratio, weights.at("compressor"), config, numerics)  # [..., n, d]
        context.index_keys = indexer.keys(latents, ratio, frequencies, weights.at("indexer"), config, numerics)
        context.compressed = compressor.store(latents, ratio, frequencies, numerics)  # [..., n, d]
        notes.store(layer, latents, context.index_keys, context.compressed)

    def _select(
        self, layer: int, x: Tensor, qr: Tensor, positions: Tensor, ratio: int, context: SharedRows, notes: Trace
    ) -> None:
        config, numerics = self.config, self.numerics
        weights = self.weights.at(f"layers.{layer}.attn.indexer")
        iq = indexer.queries(qr, positions, self.frequencies[ratio], weights, config, numerics)  # [..., T, Hi, di]
        a = indexer.head_weights(x, weights, config, numerics)  # [..., T, Hi]
        score = indexer.scores(iq, context.index_keys, a, positions, ratio, numerics)  # [..., T, n]
        notes.scores(layer, iq, a, score)
        if layer == config.candidate_source_layer_id:
            context.candidates = indexer.candidates(score, positions, ratio, config)  # [..., T, n]
            notes.note(f"L{layer}.candidate_mask", context.candidates)
        if config.uses_candidates(layer):
            score = torch.where(context.candidates, score, -torch.inf)  # [..., T, n]
        context.selected = indexer.top_rows(score, config.index_topk)  # [..., T, n]
        notes.selection(layer, context.selected, config.index_topk)


class SharedRows:
    """What a source layer leaves for the layers after it.

    compressed: [..., n, d]; index_keys: [..., n, d_index]; selected, candidates: bool [..., T, n].
    """

    compressed: Tensor
    index_keys: Tensor
    selected: Tensor
    candidates: Tensor


def _hash_tensors(config: ModelConfig, device: torch.device) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
    """Per Engram layer: multipliers [N], primes [columns], offsets [columns], int64."""
    return {
        layout.layer: (
            torch.tensor(layout.multipliers, device=device),
            torch.tensor(layout.flat_primes, device=device),
            torch.tensor(layout.flat_offsets, device=device),
        )
        for layout in EngramLayout.of(config).layers
    }
