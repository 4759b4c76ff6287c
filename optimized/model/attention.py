"""One layer's attention: query, window KV, compressed KV and index keys, selection, sparse attention, output.

Knows one layer's weights and caches; knows nothing about the residual stream. Source: V4.1 model specification §4.
"""

from __future__ import annotations

import torch

from optimized.model.caches import Caches, SourceCache
from optimized.model.rope import Rotation
from optimized.model.selections import Selections
from optimized.model.step import Step
from optimized.model.weights import AttentionWeights, CompressorWeights
from optimized.ops.compress_kv import compress_kv
from optimized.ops.linear import bf16_linear, block_diagonal_linear, fp32_linear, linear
from optimized.ops.packed import Packed
from optimized.ops.quantize import quantize_fp8, quantize_mxfp4, quantize_nvfp4
from optimized.ops.rms_norm import rms_norm
from optimized.ops.rope import rope
from optimized.ops.sparse_attention import sparse_attention
from optimized.ops.store_entries import store_entries
from reference.spec.config import ModelConfig


def attend(
    x: torch.Tensor,
    layer: int,
    weights: AttentionWeights,
    config: ModelConfig,
    step: Step,
    caches: Caches,
    selections: Selections,
    stored: bool = False,
) -> torch.Tensor:
    """Attention of all rows, after their keys were stored; the ring is read before this step's rows enter it.

    Args:
        x: [N, D] bf16, the normalised collapse. stored: `store_compressed` has run for this layer and step already.
    Returns:
        [N, D] bf16.
    """
    turn = step.compressed if config.compress_ratios[layer] else step.plain
    latent, q, rows = project_inputs(x, weights, config, turn)
    source = config.kv_source(layer)
    cache = None if source is None else caches.sources[source]
    if weights.compressor is not None and cache is not None and not stored:
        store_compressed(x, weights.compressor, config, step, cache)
    if weights.index_query is not None and cache is not None:
        selections.make(layer, weights.index_query, cache, x, latent, turn)
    index_source = config.index_source(layer)
    entry_index = None
    if cache is not None and source is not None and index_source is not None:
        entry_index = selections.entries(index_source, source, cache)
    window, place = step.window_index, step.ring_place
    if layer >= config.decoder_start:
        window, place = step.decoder_window_index, step.decoder_ring_place
    entries = None if cache is None else cache.kv
    ring = caches.rings[layer]
    out = sparse_attention(q, rows, ring, window, entries, entry_index, weights.sink, config.head_dim**-0.5)
    store_packed(ring, place, rows)
    return project_output(out, weights, config, turn)


def project_inputs(
    x: torch.Tensor, weights: AttentionWeights, config: ModelConfig, turn: Rotation
) -> tuple[torch.Tensor, torch.Tensor, Packed]:
    """Query latent [N, q_lora] bf16, rotated queries [N, H, d] bf16, and window KV as the ring keeps it.

    Args:
        x: [N, D] bf16.
    """
    heads, width, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
    latent, kv = linear(x, weights.wqkv_a).split((config.q_lora_rank, width), dim=1)
    latent = rms_norm(latent, weights.q_norm, eps)
    q = rope(linear(latent, weights.wq_b).view(-1, heads, width), *turn)
    kv = rope(rms_norm(kv, weights.kv_norm, eps)[:, None], *turn)[:, 0]
    return latent, q, Packed(*quantize_fp8(kv))


def project_output(out: torch.Tensor, weights: AttentionWeights, config: ModelConfig, turn: Rotation) -> torch.Tensor:
    """Rotation undone, then the grouped low-rank output projection: [N, H, d] bf16 to [N, D] bf16."""
    groups = rope(out, *turn, inverse=True).view(out.shape[0], config.o_groups, -1)
    return linear(block_diagonal_linear(groups, weights.wo_a), weights.wo_b)


def store_packed(cache: Packed, index: torch.Tensor, values: Packed) -> None:
    """Codes and scales of rows into flat cache entries."""
    store_entries(cache.codes, index, values.codes)
    store_entries(cache.scales, index, values.scales)


def store_compressed(
    x: torch.Tensor, weights: CompressorWeights, config: ModelConfig, step: Step, cache: SourceCache
) -> None:
    """Write the entries that this step's rows close, keys from the latent before its rotation. x: [N, D] bf16."""
    indices, eps = step.ratios[cache.ratio], config.rms_norm_eps
    if cache.open_group is None or indices.group_index is None or indices.open_place is None:
        pooled = bf16_linear(x, weights.projection)
    else:
        gated = fp32_linear(x, weights.projection).view(-1, 2, config.head_dim)
        pooled = compress_kv(gated, cache.open_group, indices.group_index)
        store_entries(cache.open_group, indices.open_place, gated)
    latent = rms_norm(pooled, weights.norm, eps)
    key = rms_norm(bf16_linear(latent, weights.index_key), weights.index_key_norm, eps)
    key = rope(key[:, None], *indices.group_rotation)[:, 0]
    flat_keys = Packed(cache.keys.codes.flatten(0, 1), cache.keys.scales.flatten(0, 1))
    store_packed(flat_keys, indices.entry_place, Packed(*quantize_mxfp4(key)))
    kv = rope(latent[:, None], *indices.group_rotation)[:, 0]
    store_packed(cache.kv, indices.entry_place, Packed(*quantize_nvfp4(kv)))
