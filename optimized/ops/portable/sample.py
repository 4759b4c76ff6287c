"""Philox, filters and the Gumbel-max draw in int64 and float64."""

from __future__ import annotations

import torch

from optimized.ops.registry import register
from optimized.ops.sample import GREEDY_TEMPERATURE, SamplingRows

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_TILE = 1 << 13  # blocks of random words that are made at once


@register("philox_words")
def philox_words(
    seed: torch.Tensor, position: torch.Tensor, sample: torch.Tensor, role: torch.Tensor, count: int
) -> torch.Tensor:
    """[S, count] int64; on the CPU in tiles whose intermediate results stay in its caches."""
    rows, blocks = seed.shape[0], (count + 3) // 4
    words = torch.empty(rows, blocks, 4, dtype=torch.int64, device=seed.device)
    width = min(blocks, _TILE) if seed.device.type == "cpu" else blocks
    height = max(1, _TILE // max(width, 1)) if seed.device.type == "cpu" else max(rows, 1)
    for top in range(0, rows, height):
        some = slice(top, top + height)
        for left in range(0, blocks, width):
            block = torch.arange(left, min(left + width, blocks), device=seed.device)
            columns = _philox(block, seed[some], position[some], sample[some], role[some])
            for place, column in enumerate(columns):
                words[some, left : left + width, place] = column
    return words.flatten(1)[:, :count]


def _philox(
    block: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, sample: torch.Tensor, role: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The four words of each block, [S, G] each. A wrapped 64-bit product still has its high word after the arithmetic
    shift and the mask."""
    c0, c1 = block.expand(seed.shape[0], -1), (position & _WORD)[:, None]
    c2, c3 = role[:, None], (sample & _WORD)[:, None]
    k0, k1 = (seed & _WORD)[:, None], ((seed >> 32) & _WORD)[:, None]
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, p1 & _WORD, ((p0 >> 32) & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _filtered(z: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Scaled logits [S, V] with -inf where top-k, top-p or min-p drop a token."""
    if rows.some_ranked:
        vocabulary = z.shape[1]
        some_p = rows.top_p < 1
        ranked, order = torch.sort(z, dim=1, descending=True, stable=True)
        limit = torch.where(rows.top_k > 0, rows.top_k, vocabulary)[:, None]
        ranked = ranked.masked_fill_(torch.arange(vocabulary, device=z.device) >= limit, -torch.inf)
        through = torch.softmax(ranked, dim=1).cumsum(dim=1)
        before = torch.cat((torch.zeros_like(through[:, :1]), through[:, :-1]), dim=1)
        ranked = ranked.masked_fill_((before >= rows.top_p[:, None]) & some_p[:, None], -torch.inf)
        z = torch.empty_like(z).scatter_(1, order, ranked)
    floor = z.amax(dim=1) + rows.log_min_p
    return z.masked_fill(z < floor[:, None], -torch.inf)


@register("process_logits")
def process_logits(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[S, V] to [S, V]."""
    if not rows.some_drawn:
        return logits
    drawn = (rows.temperature >= GREEDY_TEMPERATURE)[:, None]
    divisor = torch.where(drawn, rows.temperature[:, None], 1.0)
    return torch.where(drawn, _filtered((logits - logits.amax(dim=1, keepdim=True)) / divisor, rows), logits)


@register("draw")
def draw(processed: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """[S, V] to [S] int64; torch's argmax on the CPU returns the first maximum."""
    if not rows.some_drawn:
        return torch.argmax(processed, dim=1)
    words = philox_words(rows.seed, rows.position, rows.sample, rows.role, processed.shape[1])
    uniform = words.double().add_(0.5).mul_(2.0**-32)  # [S, V]; then in place: fresh memory costs more
    noise = uniform.neg_().log1p_().neg_().log_()  # ln E
    greedy = (rows.temperature < GREEDY_TEMPERATURE)[:, None]
    return torch.argmax(torch.sub(processed, noise.masked_fill_(greedy, 0.0), out=noise), dim=1)


@register("log_probabilities")
def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """[S, V] to [S, V]."""
    return torch.log_softmax(logits, dim=1)
