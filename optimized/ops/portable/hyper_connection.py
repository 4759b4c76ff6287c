"""Hyper-connections in float64. The Sinkhorn order is that of the specification: plain division, ends on columns."""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable.rounding import batched_matmul, mean_last, round_bf16, tiled_matmul
from optimized.ops.registry import register


def _sinkhorn(scores: torch.Tensor, eps: float, iterations: int) -> torch.Tensor:
    """[M, C, C] scores to an almost doubly stochastic [M, C, C]."""
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    comb = weights.div_(weights.sum(dim=-1, keepdim=True)).add_(eps)
    comb.div_(comb.sum(dim=-2, keepdim=True).add_(eps))
    for _ in range(iterations - 1):
        comb.div_(comb.sum(dim=-1, keepdim=True).add_(eps))
        comb.div_(comb.sum(dim=-2, keepdim=True).add_(eps))
    return comb


@register("hyper_connection_mix")
def hyper_connection_mix(
    h: torch.Tensor,
    fn: LinearWeight,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """pre [M, C], post [M, C], comb [M, C, C] float64."""
    rows, copies, _ = h.shape
    stream = h.double().flatten(1)
    inverse = torch.rsqrt(mean_last(stream.square()).add_(norm_eps))
    mixes = (tiled_matmul(stream, fn.operand) * inverse).mul_(scale).add_(base)
    pre = torch.sigmoid(mixes[:, :copies]) + hc_eps
    post = torch.sigmoid(mixes[:, copies : 2 * copies]) * 2.0
    return pre, post, _sinkhorn(mixes[:, 2 * copies :].view(rows, copies, copies), hc_eps, iterations)


@register("hyper_connection_collapse")
def hyper_connection_collapse(h: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """[M, C, D] bf16 to [M, D] bf16."""
    return round_bf16((h.double() * pre[..., None]).sum(dim=1))


@register("hyper_connection_expand")
def hyper_connection_expand(y: torch.Tensor, h: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """[M, D] and [M, C, D] bf16 to [M, C, D] bf16."""
    carried = batched_matmul(comb.transpose(1, 2), h.double())
    return round_bf16(carried.add_(post[..., None] * y.double()[:, None]))
