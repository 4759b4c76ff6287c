"""The indexer: scores compressed rows for every query, and selects which ones attention reads.

Knows scores and row numbers, not what is attended. Index keys are those of the layer's own KV source (the rule that
DeepSeek's discussion #41 calls intended). Source: V4.1 model specification §4.5, §4.6, §12.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.model import compressor, linear, norm, rope
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


def keys(
    latents: Tensor, ratio: int, frequencies: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Index keys of a KV source, from its un-rotated latents [..., n, d]: [..., n, d_index], as stored."""
    projected = linear.bf16_linear(latents, weights["wk"], numerics)  # [..., n, d_index]
    normed = norm.rms_norm(projected, weights["k_norm"], config.rms_norm_eps, numerics)  # [..., n, d_index]
    positions = compressor.row_positions(latents.shape[-2], ratio, latents.device)  # [n]
    return numerics.index_vector(rope.rotate(normed, positions, frequencies, numerics))  # [..., n, d_index]


def queries(
    qr: Tensor, positions: Tensor, frequencies: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Index queries from the query latent [..., T, q_lora]: [..., T, H_index, d_index]."""
    iq = linear.quantized_linear(qr, weights["wq_b"], config.quantized, numerics)  # [..., T, H_index·d_index]
    iq = iq.unflatten(-1, (config.index_n_heads, config.index_head_dim))  # [..., T, H_index, d_index]
    return numerics.index_vector(rope.rotate(iq, positions[..., None], frequencies, numerics))  # same


def head_weights(x: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """Weight of each index head, from the attention input [..., T, D]: [..., T, H_index]."""
    scale = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
    return numerics.bf16(linear.bf16_linear(x, weights["weights_proj"], numerics) * scale)  # [..., T, H_index]


def visible_rows(positions: Tensor, ratio: int) -> Tensor:
    """How many compressed rows a query at each position sees, ⌊(p+1)/ρ⌋: int64, the shape of ``positions``."""
    return (positions + 1) // ratio


def scores(iq: Tensor, k: Tensor, a: Tensor, positions: Tensor, ratio: int, numerics: Numerics) -> Tensor:
    """Score of every compressed row for every query, -inf where the row is not visible yet.

    Args:
        iq: [..., T, H_index, d_index]; k: [..., n, d_index]; a: [..., T, H_index]; positions: [T].
    Returns: [..., T, n]; dot product, product with the head weight and sum are each rounded to bf16.
    """
    dots = (iq.flatten(-3, -2) @ k.transpose(-1, -2)).unflatten(-2, iq.shape[-3:-1])  # [..., T, H_index, n]
    dots = numerics.bf16(dots)  # [..., T, H_index, n]
    weighted = numerics.bf16(torch.relu(dots) * a[..., None])  # [..., T, H_index, n]
    total = numerics.bf16(weighted.sum(dim=-2))  # [..., T, n]
    rows = torch.arange(k.shape[-2], device=k.device)  # [n]
    visible = rows < visible_rows(positions, ratio)[:, None]  # [T, n]
    return torch.where(visible, total, -torch.inf)  # [..., T, n]


def top_rows(score: Tensor, count: int) -> Tensor:
    """Mask of the ``count`` highest finite scores; ties go to the lower index. [..., n] -> bool [..., n]."""
    order = torch.sort(score, dim=-1, descending=True, stable=True).indices  # [..., n]
    rank = torch.empty_like(order)  # [..., n]
    rank.scatter_(-1, order, torch.arange(score.shape[-1], device=score.device).expand_as(order))  # [..., n]
    return (rank < count) & (score > -torch.inf)  # [..., n]


def candidates(score: Tensor, positions: Tensor, ratio: int, config: ModelConfig) -> Tensor:
    """Rows that later index sources may select: the best whole blocks of the candidate source's scores.

    The block that holds a query's newest visible row is always kept. Ties between blocks go to the lower block.

    Args:
        score: [..., T, n] of the candidate source, -inf where invisible; positions: [T].
    Returns: bool [..., T, n].
    """
    size = config.candidate_block_size
    padded = torch.nn.functional.pad(score, (0, -score.shape[-1] % size), value=-torch.inf)  # [..., T, blocks·size]
    block_score = padded.unflatten(-1, (-1, size)).amax(dim=-1)  # [..., T, blocks]
    visible = visible_rows(positions, ratio)[:, None]  # [T, 1]
    blocks = torch.arange(block_score.shape[-1], device=score.device)  # [blocks]
    newest = (blocks == (visible - 1) // size) & (visible > 0)  # [T, blocks]
    block_score = torch.where(newest, torch.inf, block_score)  # [..., T, blocks]
    kept = top_rows(block_score, config.candidate_topk_blocks)  # [..., T, blocks]
    return kept.repeat_interleave(size, dim=-1)[..., : score.shape[-1]]  # [..., T, n]


def row_list(selected: Tensor, width: int) -> Tensor:
    """Selected rows in ascending order, filled up with -1: bool [..., n] -> int32 [..., width]."""
    rows = torch.arange(selected.shape[-1], device=selected.device, dtype=torch.int32)  # [n]
    listed = torch.where(selected, rows, selected.shape[-1])  # [..., n]
    listed = torch.sort(listed, dim=-1).values[..., :width]  # [..., width]
    return torch.where(listed < selected.shape[-1], listed, -1)  # [..., width]
