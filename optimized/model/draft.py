"""The DSpark draft: what it keeps of each processed position, and the block of tokens that it proposes from there.

Knows taps, rings and anchors; knows nothing about verification. The rows of a block are never stored, so a rejection
leaves nothing to undo. Source: V4.1 model specification §9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from optimized.model import attention
from optimized.model.caches import CacheGeometry, Caches
from optimized.model.rope import Rotation, rotation
from optimized.model.step import Step
from optimized.model.sublayers import attention_sublayer, ffn_sublayer, first_pre
from optimized.model.weights import DraftWeights, LayerWeights, ModelWeights
from optimized.ops.hyper_connection import hyper_connection_collapse
from optimized.ops.linear import fp32_linear, linear
from optimized.ops.packed import Packed
from optimized.ops.rms_norm import rms_norm
from optimized.ops.sparse_attention import sparse_attention
from reference.spec.config import ModelConfig

Choose = Callable[[torch.Tensor, int], torch.Tensor]
"""(logits [A, V] of one slot, slot) -> token ids [A]."""


@dataclass(frozen=True)
class Anchors:
    """Where A requests draft from, all [A] int64.

    tokens: the committed token t_{p+1}. positions: p, the last processed position. slots: state slots.
    replay_starts: taps before it do not exist.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    replay_starts: torch.Tensor


@dataclass(frozen=True)
class Draft:
    """ids [A, B] int64; logits [A, B, V] with the Markov bias; confidence [A, B], raw logits."""

    ids: torch.Tensor
    logits: torch.Tensor
    confidence: torch.Tensor


class BlockStates(NamedTuple):
    """Of A blocks: x [A, B, D] bf16, their final rows; base [A, B, V], logits without the Markov bias."""

    x: torch.Tensor
    base: torch.Tensor


def tap(h: torch.Tensor) -> torch.Tensor:
    """Mean over the copies of a stream that enters a target layer: [N, C, D] bf16 to [N, D] bf16."""
    return hyper_connection_collapse(h, torch.full(h.shape[:2], 1 / h.shape[1], dtype=torch.float64, device=h.device))


def keep_context(
    taps: list[torch.Tensor], weights: DraftWeights, config: ModelConfig, step: Step, caches: Caches
) -> None:
    """Store what each block will attend to: window KV of the projected taps.

    Args:
        taps: [N, D] bf16 of every target layer.
    """
    features = linear(torch.cat(taps, dim=1), weights.context_projection)
    features = rms_norm(features, weights.context_norm, config.rms_norm_eps)
    for number, block in enumerate(weights.blocks):
        _, _, kv = attention.project_inputs(features, block.attention, config, step.plain)
        attention.store_packed(caches.rings[config.num_hidden_layers + number], step.decoder_ring_place, kv)


def block_states(
    anchors: Anchors,
    weights: ModelWeights,
    draft: DraftWeights,
    config: ModelConfig,
    geometry: CacheGeometry,
    caches: Caches,
    plain: torch.Tensor,
) -> BlockStates:
    """Everything of a block of B drafts after each anchor that does not depend on the drafts.

    Args:
        plain: [r/2] float32 frequencies of ratio-0 layers.
    """
    block = config.dspark_block_size
    tokens = torch.full((len(anchors.tokens), block), config.dspark_noise_token_id, device=anchors.tokens.device)
    tokens[:, 0] = anchors.tokens
    h = weights.embed.index_select(0, tokens.flatten())[:, None].repeat(1, config.hc_mult, 1)
    positions = anchors.positions[:, None] + torch.arange(1, block + 1, device=tokens.device)
    turn, index = rotation(positions.flatten(), plain), _visible(anchors, block, geometry)
    pre = first_pre(h)
    for number, layer in enumerate(draft.blocks):
        ring = caches.rings[config.num_hidden_layers + number]
        h, pre = attention_sublayer(h, pre, layer, config, _attention(layer, config, turn, index, ring))
        h, pre = ffn_sublayer(h, pre, layer, config, config.dspark_num_experts_per_tok)
    x = hyper_connection_collapse(h, pre)
    base = fp32_linear(rms_norm(x, draft.norm, config.rms_norm_eps), weights.head)
    return BlockStates(x.view(*tokens.shape, -1), base.view(*tokens.shape, -1))


def _visible(anchors: Anchors, block: int, geometry: CacheGeometry) -> torch.Tensor:
    """[A * B, W + B] keys of every block row: the context window up to p, then all rows of the block."""
    count, device = len(anchors.tokens), anchors.tokens.device
    position = anchors.positions[:, None] - torch.arange(geometry.window - 1, -1, -1, device=device)
    entry = count * block + anchors.slots[:, None] * geometry.ring + position % geometry.ring
    exists = (position >= 0) & (position >= anchors.replay_starts[:, None])
    own = torch.arange(count * block, device=device).view(count, block)
    return torch.cat((torch.where(exists, entry, -1), own), dim=1).repeat_interleave(block, dim=0)


def _attention(
    layer: LayerWeights, config: ModelConfig, turn: Rotation, index: torch.Tensor, ring: Packed
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The attention of one block, as a function of its normalised input [A * B, D]."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        _, q, rows = attention.project_inputs(x, layer.attention, config, turn)
        out = sparse_attention(q, rows, ring, index, None, None, layer.attention.sink, config.head_dim**-0.5)
        return attention.project_output(out, layer.attention, config, turn)

    return attend


def choose_block(states: BlockStates, before: torch.Tensor, draft: DraftWeights, choose: Choose) -> Draft:
    """Draft slot after slot: Markov bias of the token before it, choice, confidence.

    Args:
        before: [A] int64, the anchors' tokens.
    """
    x, base = states
    ids, logits, confidence = [], [], []
    for slot in range(x.shape[1]):
        embedded = draft.markov_embed.index_select(0, before)
        biased = base[:, slot] + fp32_linear(embedded, draft.markov_head)
        features = torch.cat((x[:, slot], embedded), dim=1)
        confidence.append(fp32_linear(features, draft.confidence)[:, 0])
        before = choose(biased, slot)
        ids.append(before)
        logits.append(biased)
    return Draft(torch.stack(ids, dim=1), torch.stack(logits, dim=1), torch.stack(confidence, dim=1))
