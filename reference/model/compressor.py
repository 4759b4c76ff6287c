"""The KV compressor of a source layer: groups of ρ tokens become one latent row.

Knows one layer's weights and one sequence; no cache, no attention. Source: V4.1 model specification §4.4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.model import linear, norm, rope
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


def pool(values: Tensor, gates: Tensor) -> Tensor:
    """Per-channel softmax of the gates over each group, weighting the values: [..., n, ρ, d] twice -> [..., n, d]."""
    weights = torch.softmax(gates, dim=-2)  # [..., n, ρ, d]
    return (weights * values).sum(dim=-2)  # [..., n, d]


def latent(x: Tensor, ratio: int, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """One latent row per complete group of ``ratio`` tokens; a trailing incomplete group gives none.

    Args:
        x: [..., T, D] attention input; weights: the layer's ``attn.compressor``.
    Returns: [..., T // ρ, d] bf16, before RoPE.
    """
    if ratio == 1:
        pooled = linear.bf16_linear(x, weights["wkv"], numerics)  # [..., T, d]
        return norm.rms_norm(pooled, weights["norm"], config.rms_norm_eps, numerics)  # [..., T, d]
    complete = x.shape[-2] // ratio * ratio
    grouped = x[..., :complete, :].unflatten(-2, (-1, ratio))  # [..., n, ρ, D]
    values = linear.fp32_linear(grouped, weights["wkv"])  # [..., n, ρ, d]
    gates = linear.fp32_linear(grouped, weights["wgate"])  # [..., n, ρ, d]
    pooled = numerics.bf16(pool(values, gates))  # [..., n, d]
    return norm.rms_norm(pooled, weights["norm"], config.rms_norm_eps, numerics)  # [..., n, d]


def row_positions(rows: int, ratio: int, device: torch.device) -> Tensor:
    """RoPE position of each compressed row, that of its group's first token: int64 [n]."""
    return torch.arange(rows, device=device) * ratio  # [n]


def store(latents: Tensor, ratio: int, frequencies: Tensor, numerics: Numerics) -> Tensor:
    """The compressed KV rows as the cache holds them (K and V at once): [..., n, d] -> [..., n, d]."""
    positions = row_positions(latents.shape[-2], ratio, latents.device)  # [n]
    return numerics.compressed_kv(rope.rotate(latents, positions, frequencies, numerics))  # [..., n, d]
