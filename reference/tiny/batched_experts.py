"""The MoE sublayer with all experts in one product, for training: the values of the reference's, in fewer kernels.

Knows one layer's weights. Knows nothing about routing rules. Sums over experts in float32, so that a result may differ
from `reference.model.moe.moe` by its last bf16 place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.model import moe
from reference.model.moe import Routing
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec.config import ModelConfig


def weighted_sum(
    rows: Tensor, routing: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Every expert on every row, weighted and summed.

    Args:
        rows: [R, D]; routing: [R, E] weights, zero where an expert is not chosen; w1, w3: [E, I, D]; w2: [E, D, I].
    Returns: [R, D], not rounded.
    """
    experts = routing.shape[-1]
    operand = numerics.activation(rows) if config.quantized else rows  # [R, D]
    gate = numerics.bf16(operand @ w1.flatten(0, 1).T).unflatten(-1, (experts, -1))  # [R, E, I]
    up = numerics.bf16(operand @ w3.flatten(0, 1).T).unflatten(-1, (experts, -1))  # [R, E, I]
    limit = config.swiglu_limit
    v = torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)  # [R, E, I]
    v = numerics.bf16(routing[..., None] * v)  # [R, E, I]
    v = numerics.activation(v) if config.quantized else v  # [R, E, I]
    y = numerics.bf16(torch.einsum("rei,edi->erd", v, w2))  # [E, R, D], zero where an expert is not chosen
    return y.sum(dim=0)  # [R, D]


def batched_moe(x: Tensor, routing: Routing, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """What `reference.model.moe.moe` gives: [..., D] -> [..., D]."""
    rows = x.flatten(0, -2)  # [R, D]
    experts = [weights.at(f"experts.{e}") for e in range(routing.weight.shape[-1])]
    w1, w3, w2 = (torch.stack([expert[name] for expert in experts]) for name in ("w1", "w3", "w2"))  # [E, ., .]
    total = weighted_sum(rows, routing.weight.flatten(0, -2), w1, w3, w2, config, numerics)  # [R, D]
    total = total + moe.expert(rows, None, weights.at("shared_experts"), config, numerics)  # [R, D]
    return numerics.bf16(total).view(x.shape)  # [..., D]
