"""Routing, activation and combination in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from optimized.ops.portable.rounding import round_bf16
from optimized.ops.registry import register


@register("route_experts")
def route_experts(
    logits: torch.Tensor, bias: torch.Tensor, k: int, normalize: bool, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[M, E] float64 to ids [M, k] int64 ascending and weights [M, k] float64."""
    scores = F.softplus(logits).sqrt()
    ids = torch.sort(scores + bias, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(dim=1, keepdim=True) + 1e-20)
    return ids, weights * factor


@register("swiglu")
def swiglu(gate_up: torch.Tensor, limit: float, row_weight: torch.Tensor | None) -> torch.Tensor:
    """[M, 2 I] bf16 to [M, I] bf16."""
    gate, up = gate_up.double().chunk(2, dim=1)
    activated = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return round_bf16(activated if row_weight is None else activated * row_weight[:, None])


@register("combine_experts")
def combine_experts(outputs: torch.Tensor, shared: torch.Tensor | None) -> torch.Tensor:
    """[M, k, D] and [M, D] bf16 to [M, D] bf16."""
    total = outputs[:, 0].double()
    for slot in range(1, outputs.shape[1]):
        total = total + outputs[:, slot]
    return round_bf16(total if shared is None else total + shared)
