"""The residual stream's C copies: mixing coefficients, collapse to one vector, expansion back.

Knows one token's stream; knows nothing about which sublayer sits between. Source: V4.1 model specification §3.
"""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.registry import Operation, require

HYPER_CONNECTION_MIX = Operation("hyper_connection_mix")
HYPER_CONNECTION_COLLAPSE = Operation("hyper_connection_collapse")
HYPER_CONNECTION_EXPAND = Operation("hyper_connection_expand")


def hyper_connection_mix(
    h: torch.Tensor,
    fn: LinearWeight,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coefficients of one sublayer, from the stream that enters it; nothing is rounded.

    Args:
        h: [M, C, D] bf16.
        fn: [2C + C*C, C*D], copy-major along the stream.
        scale, base: [2C + C*C], of pre, post and comb (the released three scales, spread).
        norm_eps: of the one root-mean-square over C*D. hc_eps: of pre and of each Sinkhorn division.
        iterations: Sinkhorn row passes, the softmax counted, each followed by a column pass.
    Returns:
        pre [M, C], post [M, C], comb [M, C, C] (source copy, destination copy), float64 on the CPU.
    """
    copies = h.shape[1]
    law = h.dim() == 3 and base.shape[0] == copies * (2 + copies) and fn.in_features == copies * h.shape[2]
    require(law, "hyper_connection_mix", "h [M, C, D], fn [2C + C*C, C*D], base [2C + C*C]", h, fn.operand, base)
    return HYPER_CONNECTION_MIX.on(h)(h, fn, scale, base, norm_eps, hc_eps, iterations)


def hyper_connection_collapse(h: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """bf16(sum over c of pre_c * h_c).

    Args:
        h: [M, C, D] bf16. pre: [M, C].
    Returns:
        [M, D] bf16.
    """
    require(h.shape[:2] == pre.shape, "hyper_connection_collapse", "h [M, C, D], pre [M, C]", h, pre)
    return HYPER_CONNECTION_COLLAPSE.on(h)(h, pre)


def hyper_connection_expand(y: torch.Tensor, h: torch.Tensor, post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
    """h'_i = bf16(post_i * y + sum over j of comb_{j,i} * h_j).

    Args:
        y: [M, D] bf16, the sublayer's output. h: [M, C, D] bf16. post: [M, C]. comb: [M, C, C].
    Returns:
        [M, C, D] bf16.
    """
    law = h.shape[::2] == y.shape and post.shape == h.shape[:2] and comb.shape == (*post.shape, h.shape[1])
    require(law, "hyper_connection_expand", "y [M, D], h [M, C, D], post [M, C], comb [M, C, C]", y, h, post, comb)
    return HYPER_CONNECTION_EXPAND.on(h)(y, h, post, comb)
