"""Mixture of experts: a sqrt-softplus router, FP4 routed experts and one FP8 shared expert.

Knows one layer's weights. Ties between experts go to the lower id. Source: V4.1 model specification §7.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reference.model import linear
from reference.model.indexer import top_rows
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


class Routing(NamedTuple):
    """biased: [..., E], scores plus bias, what is ranked; chosen: bool [..., E]; weight: [..., E], zero elsewhere."""

    biased: Tensor
    chosen: Tensor
    weight: Tensor


def route(x: Tensor, experts_per_token: int, weights: Weights, config: ModelConfig) -> Routing:
    """Choose experts by biased score, weigh them by the unbiased one.

    Args:
        x: [..., D] normalised collapse; weights: the layer's ``ffn.gate``.
    """
    score = torch.sqrt(torch.nn.functional.softplus(linear.fp32_linear(x, weights["weight"])))  # [..., E]
    biased = score + weights["bias"]  # [..., E]
    chosen = top_rows(biased, experts_per_token)  # [..., E]
    weight = torch.where(chosen, score, 0)  # [..., E]
    if config.norm_topk_prob:
        weight = weight / (weight.sum(dim=-1, keepdim=True) + 1e-20)  # [..., E]
    return Routing(biased, chosen, config.routed_scaling_factor * weight)


def expert(
    x: Tensor, weight: Tensor | None, expert_weights: Weights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """One SwiGLU expert; the gate is clamped from above only, the routing weight enters before the down projection.

    Args:
        x: [..., D]; weight: [..., 1] routing weight, or None for the shared expert.
    Returns: [..., D] bf16.
    """
    gate = linear.quantized_linear(x, expert_weights["w1"], config.quantized, numerics)  # [..., I]
    up = linear.quantized_linear(x, expert_weights["w3"], config.quantized, numerics)  # [..., I]
    up = up.clamp(-config.swiglu_limit, config.swiglu_limit)  # [..., I]
    gate = gate.clamp(max=config.swiglu_limit)  # [..., I]
    v = torch.nn.functional.silu(gate) * up  # [..., I]
    v = v if weight is None else weight * v  # [..., I]
    return linear.quantized_linear(numerics.bf16(v), expert_weights["w2"], config.quantized, numerics)  # [..., D]


def moe(x: Tensor, routing: Routing, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """Sum of the chosen experts in ascending id, then the shared expert, rounded once: [..., D] -> [..., D]."""
    rows = x.flatten(0, -2)  # [R, D]
    weight = routing.weight.flatten(0, -2)  # [R, E]
    chosen = routing.chosen.flatten(0, -2)  # [R, E]
    total = torch.zeros_like(rows)  # [R, D]
    for e in range(chosen.shape[-1]):
        expert_weights = weights.at(f"experts.{e}")
        if numerics.static_shapes:
            y = expert(rows, weight[:, e : e + 1], expert_weights, config, numerics)  # [R, D]
            total = total + torch.where(chosen[:, e : e + 1], y, 0)  # [R, D]
        else:
            mine = chosen[:, e].nonzero().squeeze(-1)  # [r]
            if len(mine):
                y = expert(rows[mine], weight[mine, e : e + 1], expert_weights, config, numerics)  # [r, D]
                total = total.index_add(0, mine, y)  # [R, D]
    total = total + expert(rows, None, weights.at("shared_experts"), config, numerics)  # [R, D]
    return numerics.bf16(total).view(x.shape)  # [..., D]
