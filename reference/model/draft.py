"""The DSpark draft: a few ratio-0 blocks that read tapped streams and propose a block of tokens at once.

Knows taps, anchors and block rows; knows nothing of verification. Embedding and head are the backbone's. One call
drafts from any number A of anchors of one sequence. Source: V4.1 model specification §9; DSpark (DeepSpec), §3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from reference.model import attention, hyper_connections, linear, moe, norm, rope
from reference.model.weights import Weights
from reference.numerics import Numerics

if TYPE_CHECKING:
    from reference.model.transformer import ReferenceModel

Choose = Callable[[Tensor, int], Tensor]
"""(logits [..., A, V] of one slot, slot) -> token ids [..., A]."""


class Draft(NamedTuple):
    """ids: int64 [..., A, B]; logits: [..., A, B, V] with the Markov bias; confidence: [..., A, B], raw logits."""

    ids: Tensor
    logits: Tensor
    confidence: Tensor


def tap(h: Tensor, numerics: Numerics) -> Tensor:
    """Mean over the streams that enter a target layer: [..., T, C, D] -> [..., T, D]."""
    return numerics.bf16(h.mean(dim=-2))  # [..., T, D]


def greedy(logits: Tensor, slot: int) -> Tensor:
    """Highest logit of each row, lowest id on ties: [..., A, V] -> [..., A]."""
    best = logits == logits.amax(dim=-1, keepdim=True)  # [..., A, V]
    return best.to(torch.uint8).argmax(dim=-1)  # [..., A]


def context_features(model: ReferenceModel, taps: Tensor) -> Tensor:
    """Projected and normalised target features: [..., T, targets·D] -> [..., T, D]."""
    config, numerics = model.config, model.numerics
    weights = model.weights.at("mtp.0")
    projected = linear.quantized_linear(taps, weights["main_proj"], config.quantized, numerics)  # [..., T, D]
    return norm.rms_norm(projected, weights["main_norm"], config.rms_norm_eps, numerics)  # [..., T, D]


def block_inputs(model: ReferenceModel, anchor_tokens: Tensor) -> Tensor:
    """Streams of the block rows, the anchor and B-1 noise tokens: [..., A] -> [..., A, B, C, D]."""
    config = model.config
    noise = torch.full_like(anchor_tokens, config.dspark_noise_token_id)  # [..., A]
    rows = torch.stack((anchor_tokens, *[noise] * (config.dspark_block_size - 1)), dim=-1)  # [..., A, B]
    return model.embed(rows)  # [..., A, B, C, D]


def context_mask(anchors: Tensor, length: int, window: int, start: int) -> Tensor:
    """Context positions every row of a block sees: max(start, p - window + 1) .. p. int64 [A] -> bool [A, T]."""
    keys = torch.arange(length, device=anchors.device)  # [T]
    p = anchors[:, None]  # [A, 1]
    return (keys <= p) & (keys > p - window) & (keys >= start)  # [A, T]


def attend(
    x: Tensor, features: Tensor, anchors: Tensor, visible: Tensor, weights: Weights, model: ReferenceModel
) -> Tensor:
    """Attention of one draft block: every row sees the context and, in both directions, all rows of its block.

    Args:
        x: [..., A, B, D] block rows; features: [..., T, D]; anchors: int64 [A], last processed position p;
        visible: bool [A, T].
    Returns: [..., A, B, D].
    """
    config, numerics, frequencies = model.config, model.numerics, model.frequencies[0]
    block = x.shape[-2]
    positions = anchors[:, None] + 1 + torch.arange(block, device=x.device)  # [A, B]
    qr = attention.query_latent(x, weights, config, numerics)  # [..., A, B, q_lora]
    q = attention.queries(qr, positions, frequencies, weights, config, numerics)  # [..., A, B, H, d]
    own = attention.window_kv(x, positions, frequencies, weights, config, numerics)  # [..., A, B, d]
    context_positions = torch.arange(features.shape[-2], device=x.device)  # [T]
    context = attention.window_kv(features, context_positions, frequencies, weights, config, numerics)  # [..., T, d]
    context = context[..., None, :, :].expand(*own.shape[:-2], *context.shape[-2:])  # [..., A, T, d]
    keys = torch.cat((context, own), dim=-2)  # [..., A, T+B, d]
    seen = torch.nn.functional.pad(visible, (0, block), value=True)[:, None, :]  # [A, 1, T+B]
    seen = seen.expand(*own.shape[:-1], -1)  # [..., A, B, T+B]
    o = attention.core(q, keys, seen, weights["attn_sink"], numerics)  # [..., A, B, H, d]
    o = rope.rotate(o, positions[..., None], frequencies, numerics, inverse=True)  # [..., A, B, H, d]
    return attention.project(o, weights, config, numerics)  # [..., A, B, D]


def blocks(
    model: ReferenceModel,
    h: Tensor,
    features: Tensor,
    anchors: Tensor,
    visible: Tensor,
    trace: dict[str, Tensor] | None = None,
) -> Tensor:
    """All draft blocks over the block rows, then the final collapse: [..., A, B, C, D] -> [..., A, B, D].

    ``trace`` receives ``M<m>.chosen``, the experts of every row, bool [..., A, B, E].
    """
    config, numerics = model.config, model.numerics
    pre = hyper_connections.initial_pre(h)  # [..., A, B, C]
    for m in range(config.num_nextn_predict_layers):
        weights = model.weights.at(f"mtp.{m}")
        mix_attn = hyper_connections.mix(h, *weights.mixing("attn"), config)
        u = hyper_connections.collapse(h, pre, numerics)  # [..., A, B, D]
        x = norm.rms_norm(u, weights["attn_norm"], config.rms_norm_eps, numerics)  # [..., A, B, D]
        y = attend(x, features, anchors, visible, weights.at("attn"), model)  # [..., A, B, D]
        h = hyper_connections.expand(y, h, mix_attn.post, mix_attn.comb, numerics)  # [..., A, B, C, D]
        mix_ffn = hyper_connections.mix(h, *weights.mixing("ffn"), config)
        u = hyper_connections.collapse(h, mix_attn.pre, numerics)  # [..., A, B, D]
        x = norm.rms_norm(u, weights["ffn_norm"], config.rms_norm_eps, numerics)  # [..., A, B, D]
        routing = moe.route(x, config.dspark_num_experts_per_tok, weights.at("ffn.gate"), config)
        if trace is not None:
            trace[f"M{m}.chosen"] = routing.chosen
        y = moe.moe(x, routing, weights.at("ffn"), config, numerics)  # [..., A, B, D]
        h = hyper_connections.expand(y, h, mix_ffn.post, mix_ffn.comb, numerics)  # [..., A, B, C, D]
        pre = mix_ffn.pre  # [..., A, B, C]
    return hyper_connections.collapse(h, pre, numerics)  # [..., A, B, D]


def heads(
    model: ReferenceModel, x: Tensor, anchor_tokens: Tensor, choose: Choose, previous: Tensor | None = None
) -> Draft:
    """Logits with the sequential Markov bias, the chosen drafts, and the confidence of each slot.

    The confidence of a slot reads the token before it, never its own.

    Args:
        x: [..., A, B, D] final collapse; anchor_tokens: int64 [..., A];
        choose: picks a slot's token from its logits; previous: [..., A, B], tokens to assume before each slot
        (teacher forcing) instead of the chosen ones.
    """
    config, numerics = model.config, model.numerics
    last = model.weights.at(f"mtp.{config.num_nextn_predict_layers - 1}")
    z = norm.rms_norm(x, last["norm"], config.rms_norm_eps, numerics)  # [..., A, B, D]
    base = model.logits(z)  # [..., A, B, V]
    before = anchor_tokens  # [..., A]
    ids, logits, confidence = [], [], []
    for slot in range(config.dspark_block_size):
        before = before if previous is None else previous[..., slot]  # [..., A]
        e = last["markov_head.embed"][before]  # [..., A, rank]
        biased = base[..., slot, :] + linear.fp32_linear(e, last["markov_head.head"])  # [..., A, V]
        features = torch.cat((x[..., slot, :], e), dim=-1)  # [..., A, D+rank]
        confidence.append(linear.fp32_linear(features, last["confidence_head.proj"]).squeeze(-1))  # [..., A]
        logits.append(biased)
        before = choose(biased, slot)  # [..., A]
        ids.append(before)
    return Draft(torch.stack(ids, dim=-1), torch.stack(logits, dim=-2), torch.stack(confidence, dim=-1))


def propose(
    model: ReferenceModel,
    taps: Tensor,
    anchor_tokens: Tensor,
    anchors: Tensor,
    choose: Choose = greedy,
    previous: Tensor | None = None,
    replay_start: int = 0,
    trace: dict[str, Tensor] | None = None,
) -> Draft:
    """Draft B tokens after each anchor.

    Args:
        taps: [..., T, targets·D], ``dspark_taps`` of a forward pass over the sequence.
        anchor_tokens: int64 [..., A], the committed token t_{p+1} that each block starts from.
        anchors: int64 [A], its predecessor's position p; context is what the taps hold up to p.
        choose, previous: see :func:`heads`. replay_start: taps before it do not exist. trace: see :func:`blocks`.
    """
    features = context_features(model, taps)  # [..., T, D]
    h = block_inputs(model, anchor_tokens)  # [..., A, B, C, D]
    visible = context_mask(anchors, taps.shape[-2], model.config.sliding_window, replay_start)  # [A, T]
    x = blocks(model, h, features, anchors, visible, trace)  # [..., A, B, D]
    return heads(model, x, anchor_tokens, choose, previous)
