"""The losses of the backbone and of the draft head, and the update that keeps experts evenly loaded.

Knows logits, traces and drafts. Knows nothing about data, optimizers or devices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from reference.model import ReferenceModel, indexer
from reference.model.draft import Draft

CE_WEIGHT, TV_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean negative log-likelihood in nats: logits [..., V], labels int64 [...] -> scalar."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def attention_share(q: Tensor, compressed: Tensor, visible: Tensor) -> Tensor:
    """How the heads of a layer spread over the visible compressed rows, on average.

    Args:
        q: [..., T, H, d]; compressed: [..., n, d]; visible: bool [T, n].
    Returns: [..., T, n], rows that sum to one; zero where nothing is visible.
    """
    dots = (q.flatten(-3, -2) @ compressed.transpose(-1, -2)).unflatten(-2, q.shape[-3:-1])  # [..., T, H, n]
    logits = torch.where(visible[:, None, :], dots * q.shape[-1] ** -0.5, -1e30)  # [..., T, H, n]
    return torch.softmax(logits, dim=-1).mean(dim=-2) * visible  # [..., T, n]


def indexer_loss(model: ReferenceModel, trace: dict[str, Tensor], length: int) -> Tensor:
    """Mean KL divergence from the attention share to the softmax of the index scores, over all index sources.

    Only the indexer's own weights receive a gradient: its inputs are detached. Source: DeepSeek-V3.2 technical report,
    section 2.1.1 (dense warm-up of the lightning indexer).
    """
    config, numerics = model.config, model.numerics
    positions = torch.arange(length, device=trace["hidden_final"].device)  # [T]
    total = trace["hidden_final"].new_zeros(())
    for layer in config.index_source_layer_ids:
        ratio, source = config.compress_ratios[layer], config.kv_source(layer)
        frequencies = model.frequencies[ratio]
        weights = model.weights.at(f"layers.{layer}.attn.indexer")
        key_weights = model.weights.at(f"layers.{source}.attn.indexer")
        latent = trace[f"L{source}.latent"].detach()  # [..., n, d]
        k = indexer.keys(latent, ratio, frequencies, key_weights, config, numerics)  # [..., n, di]
        iq = indexer.queries(trace[f"L{layer}.qr"].detach(), positions, frequencies, weights, config, numerics)
        a = indexer.head_weights(trace[f"L{layer}.attn_in"].detach(), weights, config, numerics)  # [..., T, Hi]
        rows = torch.arange(k.shape[-2], device=k.device)  # [n]
        visible = rows < indexer.visible_rows(positions, ratio)[:, None]  # [T, n]
        score = indexer.scores(iq, k, a, positions, ratio, numerics)  # [..., T, n]
        log_share = torch.log_softmax(torch.where(visible, score, -1e30), dim=-1)  # [..., T, n]
        with torch.no_grad():
            target = attention_share(trace[f"L{layer}.q"], trace[f"L{source}.compress_kv"], visible)  # [..., T, n]
            entropy = torch.special.xlogy(target, target).sum(dim=-1)  # [..., T]
        total = total + (entropy - (target * log_share).sum(dim=-1)).mean()
    return total / len(config.index_source_layer_ids)


@torch.no_grad()
def balance_experts(bias: Tensor, chosen: Tensor, rate: Tensor) -> None:
    """Auxiliary-loss-free load balancing: step every expert's bias towards an even load, in place.

    Args:
        bias: [E], the router bias that only ranks; chosen: bool [..., E], experts of every row; rate: scalar step.
    Source: DeepSeek-V3 technical report, section 2.1.2 (noaux_tc).
    """
    load = chosen.flatten(0, -2).sum(dim=0).to(bias.dtype)  # [E]
    bias.add_(rate * torch.sign(load.mean() - load))


class DraftLosses(NamedTuple):
    """total is what is minimised; the others are its parts; overlap: [B], mean of 1 - TV in each slot."""

    total: Tensor
    cross_entropy: Tensor
    variation: Tensor
    confidence: Tensor
    overlap: Tensor


def draft_losses(draft: Draft, target_logits: Tensor, labels: Tensor, decay: float) -> DraftLosses:
    """DSpark's three losses under teacher forcing (DSpark paper, section 3.3).

    Args:
        draft: logits [..., A, B, V] and confidence logits [..., A, B] of every anchor's block.
        target_logits: [..., A, B, V], the backbone's logits for the same tokens; no gradient reaches them.
        labels: int64 [..., A, B], the true tokens.
        decay: g of the slot weights exp(-k / g), k = 0 … B-1.
    """
    slots = labels.shape[-1]
    weight = torch.exp(-torch.arange(slots, device=labels.device) / decay)  # [B]
    weight = weight.expand(labels.shape) / (weight.sum() * labels[..., 0].numel())  # [..., A, B], sums to one
    log_q = torch.log_softmax(draft.logits, dim=-1)  # [..., A, B, V]
    p = torch.softmax(target_logits.detach(), dim=-1)  # [..., A, B, V]
    nll = -log_q.gather(-1, labels[..., None]).squeeze(-1)  # [..., A, B]
    distance = (log_q.exp() - p).abs().sum(dim=-1)  # [..., A, B], twice the total variation
    overlap = (1 - 0.5 * distance.detach()).clamp(0, 1)  # [..., A, B]
    doubt = torch.nn.functional.binary_cross_entropy_with_logits(draft.confidence, overlap, reduction="none")
    ce, tv, confidence = ((weight * part).sum() for part in (nll, distance, doubt))
    total = CE_WEIGHT * ce + TV_WEIGHT * tv + CONFIDENCE_WEIGHT * confidence
    return DraftLosses(total, ce, tv, confidence, overlap.flatten(0, -2).mean(dim=0))
