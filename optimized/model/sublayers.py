"""The two sublayers of a layer around the hyper-connected stream. They know one layer's weights, and no cache.

A sublayer's post and comb come from its own mix; its input collapses with the pre that the sublayer before it handed
over. Source: V4.1 model specification §3.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from optimized.model import moe
from optimized.model.weights import HyperConnectionWeights, LayerWeights
from optimized.ops.hyper_connection import hyper_connection_collapse, hyper_connection_expand, hyper_connection_mix
from optimized.ops.rms_norm import rms_norm
from reference.spec.config import ModelConfig


def first_pre(h: torch.Tensor) -> torch.Tensor:
    """The pre of the first sublayer: copy 0 alone. h: [N, C, D]; returns [N, C]."""
    pre = torch.zeros(h.shape[:2], dtype=torch.float64, device=h.device)
    pre[:, 0] = 1.0
    return pre


def attention_input(h: torch.Tensor, pre: torch.Tensor, weights: LayerWeights, config: ModelConfig) -> torch.Tensor:
    """What attention reads: the normalised collapse [N, D] bf16. h: [N, C, D] bf16; pre: [N, C]."""
    return rms_norm(hyper_connection_collapse(h, pre), weights.attention_norm, config.rms_norm_eps)


def attention_sublayer(
    h: torch.Tensor,
    pre: torch.Tensor,
    weights: LayerWeights,
    config: ModelConfig,
    attend: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stream after attention, and the pre for the next sublayer.

    Args:
        h: [N, C, D] bf16. pre: [N, C]. attend: [N, D] bf16 to [N, D] bf16.
    """
    own_pre, post, comb = _mix(h, weights.attention_mix, config)
    return hyper_connection_expand(attend(attention_input(h, pre, weights, config)), h, post, comb), own_pre


def ffn_sublayer(
    h: torch.Tensor, pre: torch.Tensor, weights: LayerWeights, config: ModelConfig, experts_per_token: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The stream after the experts, and the pre for the next sublayer. h: [N, C, D] bf16; pre: [N, C]."""
    own_pre, post, comb = _mix(h, weights.ffn_mix, config)
    x = rms_norm(hyper_connection_collapse(h, pre), weights.ffn_norm, config.rms_norm_eps)
    return hyper_connection_expand(moe.mixture(x, weights.moe, config, experts_per_token), h, post, comb), own_pre


def _mix(
    h: torch.Tensor, weights: HyperConnectionWeights, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return hyper_connection_mix(
        h, weights.fn, weights.scale, weights.base, config.rms_norm_eps, config.hc_eps, config.hc_sinkhorn_iters
    )
