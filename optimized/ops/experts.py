"""Mixture of experts around the grouped products: routing, the gated activation, the combination.

Knows scores and rows; knows nothing about where experts live. Source: V4.1 model specification §7.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

ROUTE_EXPERTS = Operation("route_experts")
SWIGLU = Operation("swiglu")
COMBINE_EXPERTS = Operation("combine_experts")


def route_experts(
    logits: torch.Tensor, bias: torch.Tensor, k: int, normalize: bool, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k experts with the highest sqrt(softplus(logit)) + bias; ties go to the lower id.

    Args:
        logits: [M, E] carried in fp32 (float64 on the CPU). bias: [E], for the choice only.
        normalize: divide the weights by (their sum + 1e-20). factor: multiplies the weights last.
    Returns:
        ids [M, k] int64 in ascending order, weights [M, k] (no bias in them), not rounded.
    """
    require(
        logits.shape[1:] == bias.shape and k <= logits.shape[1], "route_experts", "[M, E], [E], k <= E", logits, bias
    )
    return ROUTE_EXPERTS.on(logits)(logits, bias, k, normalize, factor)


def swiglu(gate_up: torch.Tensor, limit: float, row_weight: torch.Tensor | None = None) -> torch.Tensor:
    """bf16(w * silu(min(a, limit)) * clamp(u, -limit, limit)): the gate is clamped from above only.

    Args:
        gate_up: [M, 2 I] bf16, a then u. row_weight: [M] routing weight, or None for 1.
    Returns:
        [M, I] bf16.
    """
    require(gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0, "swiglu", "gate_up [M, 2 I]", gate_up)
    return SWIGLU.on(gate_up)(gate_up, limit, row_weight)


def combine_experts(outputs: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
    """bf16 of the sum in ascending expert id, the shared expert last.

    Args:
        outputs: [M, k, D] bf16, experts in ascending id. shared: [M, D] bf16, or None.
    Returns:
        [M, D] bf16.
    """
    require(outputs.dim() == 3, "combine_experts", "outputs [M, k, D]", outputs)
    return COMBINE_EXPERTS.on(outputs)(outputs, shared)
