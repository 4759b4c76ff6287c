"""Mixture of experts: routing, the chosen experts, the shared one. Knows one layer's weights.

Source: V4.1 model specification §7.
"""

from __future__ import annotations

import torch

from optimized.model.weights import MoeWeights
from optimized.ops.experts import combine_experts, route_experts, swiglu
from optimized.ops.grouped_linear import grouped_linear
from optimized.ops.linear import fp32_linear, linear
from reference.spec.config import ModelConfig


def mixture(x: torch.Tensor, weights: MoeWeights, config: ModelConfig, experts_per_token: int) -> torch.Tensor:
    """Rows are sorted by expert, computed, put back, and summed in ascending expert id.

    Args:
        x: [N, D] bf16, the normalised collapse.
    Returns:
        [N, D] bf16.
    """
    rows, limit = x.shape[0], config.swiglu_limit
    logits = fp32_linear(x, weights.gate)
    ids, shares = route_experts(
        logits, weights.bias, experts_per_token, config.norm_topk_prob, config.routed_scaling_factor
    )
    expert, order = torch.sort(ids.flatten(), stable=True)
    gate_up = grouped_linear(x.index_select(0, order // experts_per_token), expert, weights.w13)
    active = swiglu(gate_up, limit, shares.flatten().index_select(0, order))
    sorted_outputs = grouped_linear(active, expert, weights.w2)
    outputs = torch.empty_like(sorted_outputs).index_copy_(0, order, sorted_outputs)
    shared = linear(swiglu(linear(x, weights.shared_w13), limit), weights.shared_w2)
    return combine_experts(outputs.view(rows, experts_per_token, x.shape[1]), shared)
