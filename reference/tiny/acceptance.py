"""How many drafts of a checkpoint are accepted, and how well its confidence foretells that, on text of its own.

Knows the model, its draft and both acceptance rules at full verification length. Knows nothing about engines.
Every position of the generated text serves as an anchor once, whether or not a decoding run would have drafted there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference.model import ReferenceModel, draft

BINS = 15


@dataclass(frozen=True)
class Acceptance:
    """Results at one temperature, lists by slot.

    conditional: acceptance of a slot's draft where all earlier ones were accepted (greedy rule at temperature 0,
        coupled rule otherwise). survival: all drafts up to the slot accepted. anchors: blocks measured.
    tokens_per_cycle: tokens committed by a decoding run's cycle, the bonus token included.
    overlap: sum of min(p, q) given the text before the slot, the acceptance of the ratio rule at temperature 1.
    survival_error: expected calibration error of the running product of confidences against survival.
    overlap_error: mean distance of the confidence from the overlap, what it was trained for.
    """

    temperature: float
    anchors: int
    conditional: list[float]
    survival: list[float]
    tokens_per_cycle: float
    overlap: list[float]
    survival_error: list[float]
    overlap_error: list[float]


def noise(shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """Gumbel noise, one value for every position and token id, shared by target and draft."""
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed)).clamp(1e-9, 1 - 1e-7)
    return -torch.log(-torch.log(uniform)).to(device)


def pick(logits: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """The token of largest logit at temperature 0, else of largest logit / temperature + noise: [..., V] -> [...]."""
    return (logits if temperature == 0 else logits / temperature + gumbel).argmax(dim=-1)


@torch.no_grad()
def continue_text(model: ReferenceModel, prompts: Tensor, count: int, temperature: float, gumbel: Tensor) -> Tensor:
    """Prompts [B, P] with `count` more tokens: [B, P + count]. gumbel: [B, P + count, V], by position."""
    ids = prompts
    for _ in range(count):
        logits = model.logits(model.hidden(ids)[:, -1])  # [B, V]
        ids = torch.cat((ids, pick(logits, gumbel[:, ids.shape[1]], temperature)[:, None]), dim=1)  # [B, T + 1]
    return ids


@torch.no_grad()
def measure(model: ReferenceModel, ids: Tensor, prompt: int, temperature: float, gumbel: Tensor) -> Acceptance:
    """Draft from every anchor inside the generated part of ids [B, T] and compare with what follows there.

    Args:
        ids: int64 [B, T], whose tokens from `prompt` on are the target's own at this temperature and noise.
        gumbel: [B, T, V], the noise that chose them.
    """
    slots = model.config.dspark_block_size
    anchors = torch.arange(prompt - 1, ids.shape[1] - slots - 1, device=ids.device)  # [A], last processed position
    at = anchors[:, None] + torch.arange(slots, device=ids.device)  # [A, S]
    trace: dict[str, Tensor] = {}
    target = model.logits(model.hidden(ids, trace=trace)[:, at + 1])  # [B, A, S, V], for the token at position at + 2

    def choose(logits: Tensor, slot: int) -> Tensor:
        return pick(logits, gumbel[:, anchors + 2 + slot], temperature)  # [B, A]

    taps, first = trace["dspark_taps"], ids[:, anchors + 1]  # [B, T, .], [B, A]
    free = draft.propose(model, taps, first, anchors, choose=choose)
    forced = draft.propose(model, taps, first, anchors, previous=ids[:, at + 1])
    accepted = (free.ids == ids[:, at + 2]).long().cumprod(dim=-1)  # [B, A, S]
    overlap = torch.minimum(torch.softmax(forced.logits, -1), torch.softmax(target, -1)).sum(dim=-1)  # [B, A, S]
    survival = accepted.float().mean(dim=(0, 1))  # [S]
    earlier = torch.cat((torch.ones_like(survival[:1]), survival[:-1]))  # [S]
    predicted = torch.sigmoid(free.confidence).cumprod(dim=-1)  # [B, A, S]
    distance = (torch.sigmoid(forced.confidence) - overlap).abs().mean(dim=(0, 1))  # [S]
    return Acceptance(
        temperature=temperature,
        anchors=accepted[..., 0].numel(),
        conditional=(survival / earlier.clamp(min=1e-9)).tolist(),
        survival=survival.tolist(),
        tokens_per_cycle=tokens_per_cycle(accepted.sum(dim=-1)),
        overlap=overlap.mean(dim=(0, 1)).tolist(),
        survival_error=[calibration_error(predicted[..., k], accepted[..., k]) for k in range(slots)],
        overlap_error=distance.tolist(),
    )


def tokens_per_cycle(accepted: Tensor) -> float:
    """Mean tokens a cycle commits when each starts where the last ended. accepted: int64 [B, A], drafts accepted."""
    committed, cycles = 0, 0
    for row in accepted.tolist():
        anchor = 0
        while anchor < len(row):
            committed, cycles = committed + row[anchor] + 1, cycles + 1
            anchor += row[anchor] + 1
    return committed / cycles


def calibration_error(predicted: Tensor, outcome: Tensor) -> float:
    """Expected calibration error over `BINS` equal bins: probabilities and outcomes 0 or 1, any equal shape."""
    p, y = predicted.flatten().double(), outcome.flatten().double()
    index = (p * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64, device=p.device).index_add_(0, index, p - y)  # [BINS]
    return float(gaps.abs().sum() / p.numel())
