"""Single-pass manifold-constrained hyper-connections: C residual streams mixed around every sublayer.

Knows streams; knows nothing of the sublayers between them. Source: V4.1 model specification §3.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reference.numerics import Numerics
from reference.spec import ModelConfig


class Mixing(NamedTuple):
    """What one sublayer's mix hands out.

    pre: [..., C], collapse weights, used by the *next* sublayer.
    post: [..., C], weight of the sublayer's output in each stream.
    comb: [..., C, C], first index source stream, second index destination stream.
    """

    pre: Tensor
    post: Tensor
    comb: Tensor


def initial_pre(h: Tensor) -> Tensor:
    """Collapse weights of the first sublayer, (1, 0, …, 0), for streams h [..., C, D]: [..., C]."""
    first = torch.zeros(h.shape[-2], dtype=h.dtype, device=h.device)  # [C]
    first = torch.cat((first[:1] + 1, first[1:]))  # [C]
    return first.expand(h.shape[:-1])  # [..., C]


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Rows then columns, ``iterations`` times; the first row pass is a softmax. [..., C, C] -> [..., C, C]."""
    shifted = logits - logits.amax(dim=-1, keepdim=True)  # [..., C, C]
    exponentials = torch.exp(shifted)  # [..., C, C]
    k = exponentials / exponentials.sum(dim=-1, keepdim=True) + eps  # [..., C, C]
    k = k / (k.sum(dim=-2, keepdim=True) + eps)  # [..., C, C]
    for _ in range(iterations - 1):
        k = k / (k.sum(dim=-1, keepdim=True) + eps)  # [..., C, C]
        k = k / (k.sum(dim=-2, keepdim=True) + eps)  # [..., C, C]
    return k


def mix(h: Tensor, fn: Tensor, scale: Tensor, base: Tensor, config: ModelConfig) -> Mixing:
    """The dynamic mixing weights of one sublayer, nothing rounded.

    Args:
        h: [..., C, D] streams; fn: [2C + C², C·D]; scale: [3]; base: [2C + C²].
    """
    copies = config.hc_mult
    v = h.flatten(-2)  # [..., C·D]
    inverse_rms = torch.rsqrt(v.square().mean(dim=-1, keepdim=True) + config.rms_norm_eps)  # [..., 1]
    m = (v @ fn.T) * inverse_rms  # [..., 2C + C²]
    pre = torch.sigmoid(m[..., :copies] * scale[0] + base[:copies]) + config.hc_eps  # [..., C]
    post = 2 * torch.sigmoid(m[..., copies : 2 * copies] * scale[1] + base[copies : 2 * copies])  # [..., C]
    logits = m[..., 2 * copies :] * scale[2] + base[2 * copies :]  # [..., C²]
    logits = logits.unflatten(-1, (copies, copies))  # [..., C, C]
    return Mixing(pre, post, sinkhorn(logits, config.hc_sinkhorn_iters, config.hc_eps))


def collapse(h: Tensor, pre: Tensor, numerics: Numerics) -> Tensor:
    """bf16( Σ_c pre_c · h_c ): streams [..., C, D] and weights [..., C] -> [..., D]."""
    return numerics.bf16((pre[..., None] * h).sum(dim=-2))  # [..., D]


def expand(y: Tensor, h: Tensor, post: Tensor, comb: Tensor, numerics: Numerics) -> Tensor:
    """h'_i = bf16( post_i · y + Σ_j comb_{j,i} · h_j ).

    Args:
        y: [..., D] sublayer output; h: [..., C, D] streams before it; post: [..., C]; comb: [..., C, C].
    Returns: [..., C, D].
    """
    carried = (comb[..., :, :, None] * h[..., :, None, :]).sum(dim=-3)  # [..., C, D]
    return numerics.bf16(post[..., None] * y[..., None, :] + carried)  # [..., C, D]
