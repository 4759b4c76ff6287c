"""Multi-query attention over a sliding window and selected compressed rows, with sinks and a grouped output LoRA.

Knows one layer's weights; is told which keys are visible. Source: V4.1 model specification §4.2, §4.3, §4.7, §4.8.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.model import linear, norm, rope
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


def query_latent(x: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """The shared query latent: attention input [..., T, D] -> [..., T, q_lora]."""
    projected = linear.quantized_linear(x, weights["wq_a"], config.quantized, numerics)  # [..., T, q_lora]
    return norm.rms_norm(projected, weights["q_norm"], config.rms_norm_eps, numerics)  # [..., T, q_lora]


def queries(
    qr: Tensor, positions: Tensor, frequencies: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Rotated queries (no per-head norm): [..., T, q_lora] -> [..., T, H, d]."""
    q = linear.quantized_linear(qr, weights["wq_b"], config.quantized, numerics)  # [..., T, H·d]
    q = q.unflatten(-1, (config.num_attention_heads, config.head_dim))  # [..., T, H, d]
    return rope.rotate(q, positions[..., None], frequencies, numerics)  # [..., T, H, d]


def window_kv(
    x: Tensor, positions: Tensor, frequencies: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Window key/value rows as the ring stores them (K = V, one head): [..., T, D] -> [..., T, d]."""
    projected = linear.quantized_linear(x, weights["wkv"], config.quantized, numerics)  # [..., T, d]
    normed = norm.rms_norm(projected, weights["kv_norm"], config.rms_norm_eps, numerics)  # [..., T, d]
    return numerics.window_kv(rope.rotate(normed, positions, frequencies, numerics))  # [..., T, d]


def window_mask(positions: Tensor, window: int, start: int) -> Tensor:
    """Which positions each query's window holds: max(start, p - window + 1) .. p. int64 [T] -> bool [T, T]."""
    query, key = positions[:, None], positions[None, :]  # [T, 1], [1, T]
    return (key <= query) & (key > query - window) & (key >= start)  # [T, T]


def core(q: Tensor, kv: Tensor, visible: Tensor, sink: Tensor, numerics: Numerics) -> Tensor:
    """Softmax attention with a sink that joins only the denominator.

    Scores are exponentials of two against an integer maximum n, so rescaling by any other integer is exact and a bf16
    weight does not depend on the order in which keys are visited. The numerator sums rounded weights, the denominator
    unrounded ones.

    Args:
        q: [..., T, H, d]; kv: [..., J, d], keys and values at once; visible: bool [..., T, J];
        sink: [H], a logit in natural units.
    Returns: [..., T, H, d] bf16; zero where nothing is visible.
    """
    log2e = math.log2(math.e)
    dots = (q.flatten(-3, -2) @ kv.transpose(-1, -2)).unflatten(-2, q.shape[-3:-1])  # [..., T, H, J]
    logits = dots * (q.shape[-1] ** -0.5 * log2e)  # [..., T, H, J]
    logits = torch.where(visible[..., None, :], logits, -torch.inf)  # [..., T, H, J]
    sink_logit = (sink * log2e)[:, None]  # [H, 1]
    largest = torch.maximum(logits.detach().amax(dim=-1, keepdim=True), sink_logit.detach())  # [..., T, H, 1]
    n = torch.ceil(largest)  # [..., T, H, 1]
    weight = torch.exp2(logits - n)  # [..., T, H, J]
    denominator = weight.sum(dim=-1, keepdim=True) + torch.exp2(sink_logit - n)  # [..., T, H, 1]
    numerator = (numerics.bf16(weight).flatten(-3, -2) @ kv).unflatten(-2, q.shape[-3:-1])  # [..., T, H, d]
    return numerics.bf16(numerator / denominator)  # [..., T, H, d]


def project(o: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """Grouped low-rank output projection of the un-rotated heads: [..., T, H, d] -> [..., T, D]."""
    grouped = o.flatten(-2).unflatten(-1, (config.o_groups, -1))  # [..., T, G, H·d/G]
    wo_a = weights["wo_a"].unflatten(0, (config.o_groups, -1))  # [G, o_lora, H·d/G]
    z = numerics.bf16(torch.einsum("...gk,gok->...go", grouped, wo_a))  # [..., T, G, o_lora]
    return linear.quantized_linear(z.flatten(-2), weights["wo_b"], config.quantized, numerics)  # [..., T, D]
