"""How the next token is chosen from one row of logits: counter-based noise, filters, the Gumbel-max draw, logprobs.

Knows nothing about the model, about requests or about text. A draw is a pure function of the logits, the parameters,
the context, the seed, the token's absolute position, the role and the sample index: no state, so no batch and no
restart shifts it.

The order is pinned: bias → penalties (repetition, frequency, presence) → masks (grammar, `min_tokens`) → [greedy exit
at temperature 0] → temperature → top-k → top-p (on what top-k kept, renormalised) → min-p → draw. Logprobs are raw
unless asked otherwise: the log-softmax of the model's own logits, before all of these.
Source: serving specification §5; Philox4x32-10 is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from reference import adjustments
from reference.adjustments import Context
from reference.spec.errors import RequestError
from reference.spec.sampling import SamplingParams

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
PHILOX_ROUNDS = 10
#: Below this a temperature means greedy.
GREEDY_TEMPERATURE = 1e-5

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Role(IntEnum):
    """What a random number is for; a part of the counter, so that no two uses share noise."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True)
class Draw:
    """One chosen token.

    logprob: raw, rounded to float32. rank: 1 + number of strictly greater logits. row: [V], what it was drawn from.
    """

    token: int
    logprob: float
    rank: int
    row: Tensor


def philox4x32(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10.

    Args:
        counter: [..., 4] unsigned 32-bit values.
        key: two unsigned 32-bit values.

    Returns:
        [..., 4] uint32.
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))  # [...] each
    k0, k1 = key
    for _ in range(PHILOX_ROUNDS):
        p0 = np.uint64(PHILOX_MULTIPLIERS[0]) * c0  # [...]
        p1 = np.uint64(PHILOX_MULTIPLIERS[1]) * c2  # [...]
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),  # [...]
            p1 & _LOW,  # [...]
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),  # [...]
            p0 & _LOW,  # [...]
        )
        k0 = (k0 + PHILOX_WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + PHILOX_WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)  # [..., 4]


def random_words(vocab_size: int, seed: int, position: int, role: Role, sample_index: int) -> np.ndarray:
    """One random word per token id: [V] uint32.

    The counter is (token id >> 2, position, role, sample index), the word token id & 3; the key is the seed's two
    halves, low and high.

    Args:
        seed: unsigned 64-bit.
        position: index of the token being drawn in prompt + output.
    """
    groups = np.arange((vocab_size + 3) // 4, dtype=np.uint32)  # [G]
    counter = np.empty((len(groups), 4), dtype=np.uint32)  # [G, 4]
    counter[:, 0] = groups
    counter[:, 1] = position
    counter[:, 2] = role
    counter[:, 3] = sample_index
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))  # [G, 4]
    return words.reshape(-1)[:vocab_size]  # [V]


def uniforms(words: np.ndarray) -> np.ndarray:
    """Uniform float64 values strictly between 0 and 1 from 32-bit words: (r + 1/2)·2⁻³²; the shape is kept."""
    return (words.astype(np.float64) + 0.5) * 2.0**-32


def exponentials(words: np.ndarray) -> np.ndarray:
    """Exponential float64 values E = −log1p(−u); the shape is kept.

    A word has 32 bits, hence −ln E ≤ 22.9: a token more than about 23 nats below the best, noise included, is never
    drawn.
    """
    return -np.log1p(-uniforms(words))


def check_logits(logits: Tensor) -> None:
    """Refuse a row [V] from which nothing can be drawn.

    Raises:
        RequestError: the row holds NaN or +inf, or every entry is −inf.
    """
    if torch.isnan(logits).any():
        raise RequestError(f"the logits hold {int(torch.isnan(logits).sum())} NaN of {logits.numel()} values")
    if torch.isposinf(logits).any():
        raise RequestError(f"the logits hold {int(torch.isposinf(logits).sum())} times +inf")
    if torch.isneginf(logits).all():
        raise RequestError("every token is masked: all logits are -inf")


def is_greedy(params: SamplingParams) -> bool:
    """Whether a request takes the argmax instead of drawing."""
    return params.temperature < GREEDY_TEMPERATURE


def adjusted(logits: Tensor, params: SamplingParams, context: Context) -> Tensor:
    """The row after bias, penalties and masks, in this order: [V] -> [V] float64.

    Raises:
        RequestError: nothing can be drawn from the row, before or after.
    """
    check_logits(logits)
    row = logits.double()  # [V]
    if params.logit_bias is not None:
        row = adjustments.add_bias(row, params.logit_bias)  # [V]
    if params.repetition_penalty != 1.0:
        row = adjustments.penalize_repetition(row, [*context.prompt, *context.output], params.repetition_penalty)  # [V]
    if params.frequency_penalty:
        row = adjustments.penalize_frequency(row, context.output, params.frequency_penalty)  # [V]
    if params.presence_penalty:
        row = adjustments.penalize_presence(row, context.output, params.presence_penalty)  # [V]
    if context.grammar is not None:
        row = adjustments.keep_allowed(row, context.grammar(context.output))  # [V]
    if len(context.output) < params.min_tokens:
        row = adjustments.ban(row, context.ends)  # [V]
    check_logits(row)
    return row


def scale(logits: Tensor, temperature: float) -> Tensor:
    """Divide by the temperature after the maximum is taken off, so that no temperature overflows: [V]."""
    return (logits - logits.max()) / temperature  # [V]


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """−inf outside the first k by (logit descending, id ascending): exactly k stay. k ≤ 0 or k ≥ V is off. [V]"""
    if k <= 0 or k >= logits.numel():
        return logits
    order = torch.sort(logits, descending=True, stable=True).indices  # [V]
    return logits.index_fill(-1, order[k:], -torch.inf)  # [V]


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep a token while the mass strictly before it is below p, else −inf; the best stays. p ≥ 1 is off. [V]

    The mass is that of the softmax of `logits`, so it is renormalised over what earlier filters kept; the sum runs over
    the tokens in the order (logit descending, id ascending), in float64.
    """
    if p >= 1:
        return logits
    ranked, order = torch.sort(logits, descending=True, stable=True)  # [V], [V]
    mass = torch.softmax(ranked.double(), dim=-1)  # [V]
    through = torch.cumsum(mass, dim=-1)  # [V]
    before = torch.cat([through.new_zeros(1), through[:-1]])  # [V]
    return logits.index_fill(-1, order[before >= p], -torch.inf)  # [V]


def keep_min_p(logits: Tensor, p: float) -> Tensor:
    """−inf below max + ln p: a token stays if its probability is at least p times the best one's. p ≤ 0 is off. [V]"""
    if p <= 0:
        return logits
    return logits.masked_fill(logits < logits.max() + math.log(p), -torch.inf)  # [V]


def filtered(row: Tensor, params: SamplingParams) -> Tensor:
    """An adjusted row, scaled, and −inf where a filter dropped a token: [V] -> [V] float64."""
    scaled = scale(row.double(), params.temperature)  # [V]
    of_k = keep_top_k(scaled, params.top_k)  # [V]
    of_p = keep_top_p(of_k, params.top_p)  # [V]
    return keep_min_p(of_p, params.min_p)  # [V]


def processed(logits: Tensor, params: SamplingParams, context: Context) -> Tensor:
    """What a token is drawn from, after everything; for a greedy request after the masks: [V] -> [V] float64."""
    row = adjusted(logits, params, context)  # [V]
    return row if is_greedy(params) else filtered(row, params)  # [V]


def lowest_argmax(row: Tensor) -> int:
    """The greatest entry of a row [V], the lowest id on ties."""
    return int((row == row.max()).nonzero()[0])


def gumbel_argmax(logits: Tensor, words: np.ndarray) -> int:
    """The token with the greatest z − ln E, the lowest id on ties; −inf is never drawn.

    Args:
        logits: [V] float64, z.
        words: [V] uint32.
    """
    noise = torch.from_numpy(np.log(exponentials(words)))  # [V]
    return lowest_argmax(logits - noise)


@dataclass(frozen=True)
class Noise:
    """The random numbers of one sample of one request. seed: unsigned 64-bit."""

    seed: int
    sample_index: int = 0

    def draws(self, row: Tensor, position: int, role: Role) -> int:
        """A token of the softmax of a row [V]; the same row, position and role give the same token."""
        return gumbel_argmax(row, random_words(row.numel(), self.seed, position, role, self.sample_index))

    def accepts(self, position: int, target: float, draft: float) -> bool:
        """Whether a draft passes the ratio test: u · draft < target, of its two probabilities."""
        word = random_words(1, self.seed, position, Role.ACCEPT, self.sample_index)  # [1]
        return float(uniforms(word)[0]) * draft < target


def raw_logprobs(logits: Tensor) -> Tensor:
    """The log-softmax of the model's logits, in float64 and then rounded to float32: [V]."""
    return torch.log_softmax(logits.double(), dim=-1).float()  # [V]


def rank(logits: Tensor, token: int) -> int:
    """1 + the number of strictly greater logits of the row [V]."""
    return 1 + int((logits > logits[token]).sum())


def top_tokens(logits: Tensor, count: int) -> list[int]:
    """The first `count` ids of the row [V] by (logit descending, id ascending)."""
    return torch.sort(logits, descending=True, stable=True).indices[:count].tolist()


def draw(
    logits: Tensor,
    params: SamplingParams,
    *,
    seed: int,
    position: int,
    sample_index: int = 0,
    role: Role = Role.TARGET,
    context: Context | None = None,
) -> Draw:
    """Choose one token.

    Args:
        logits: [V], the model's, float32 or float64.
        params: the request's.
        seed: unsigned 64-bit, the request's.
        position: index of the new token in prompt + output.
        sample_index: which of the request's n samples.
        context: what stands before the token: what penalties count and masks look at. None: nothing.

    Raises:
        RequestError: nothing can be drawn from this row.
    """
    row = processed(logits, params, context or Context())  # [V]
    token = lowest_argmax(row) if is_greedy(params) else Noise(seed, sample_index).draws(row, position, role)
    return Draw(token, float(raw_logprobs(logits)[token]), rank(logits, token), row)
