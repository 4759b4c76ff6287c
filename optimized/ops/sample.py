"""Draw of the next token from logits, and the raw log-probabilities of tokens.

Knows rows of logits and arrays of parameters; knows nothing about requests, text or stop rules.
Order: [greedy exit] temperature, top-k, top-p (on the top-k-renormalised mass), min-p, Gumbel-max. Ties: lowest id.
Source: serving specification §5 (Philox4x32-10 keyed by seed, position, role and sample).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.ops.registry import Operation, require

DRAW = Operation("draw")
PROCESS_LOGITS = Operation("process_logits")
PHILOX_WORDS = Operation("philox_words")
LOG_PROBABILITIES = Operation("log_probabilities")

TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)
#: Below this a temperature means greedy.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class SamplingRows:
    """Per-row parameters, all [S] on the device of the logits, and what the host knows of them.

    temperature: float64, 0 = greedy. top_k: int64, <= 0 = off. top_p: float64, 1 = off. log_min_p: float64, the
    logarithm of min-p, -inf = off. seed: int64, the 64 bits of an unsigned seed. position: int64, index of the drawn
    token in prompt + output. sample: int64, which of the request's n samples. role: int64, what the noise is for.
    some_drawn: a row may not be greedy. some_ranked: a row may have top-k or top-p. Where False the work is left out;
    no bit depends on it.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    log_min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    sample: torch.Tensor
    role: torch.Tensor
    some_drawn: bool = True
    some_ranked: bool = True


def philox_words(
    seed: torch.Tensor, position: torch.Tensor, sample: torch.Tensor, role: torch.Tensor, count: int
) -> torch.Tensor:
    """Random 32-bit words 0 .. count - 1 of each row: word & 3 of the block with counter
    (word >> 2, position, role, sample) and key (seed low, seed high).

    Args:
        seed, position, sample, role: [S] int64.
    Returns:
        [S, count] int64 in 0 .. 2^32 - 1.
    """
    fits = seed.shape == position.shape == sample.shape == role.shape
    require(fits, "philox_words", "[S] each", seed, position, sample, role)
    return PHILOX_WORDS.on(seed)(seed, position, sample, role, count)


def draw(processed: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Next token of each row: argmax for temperature 0, else the largest z - ln(E), with noise of the row's role.

    NaN, +inf and rows of -inf alone are the caller's to refuse (see ``greatest``).

    Args:
        processed: [S, V] float64, of ``process_logits``.
    Returns:
        [S] int64.
    """
    fits = processed.dim() == 2 and rows.seed.shape == processed.shape[:1]
    require(fits, "draw", "processed [S, V]", processed, rows.seed)
    return DRAW.on(processed)(processed, rows)


def process_logits(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """What a row's token is drawn from: scaled, and -inf where a filter drops a token; a greedy row as it is.

    Args:
        logits: [S, V] float64 on the CPU, already biased, penalised and masked.
    Returns:
        [S, V] of the same dtype.
    """
    fits = logits.dim() == 2 and rows.seed.shape == logits.shape[:1]
    require(fits, "process_logits", "logits [S, V]", logits, rows.seed)
    return PROCESS_LOGITS.on(logits)(logits, rows)


def greatest(logits: torch.Tensor) -> torch.Tensor:
    """[S, V] to [S]: finite if a token can be drawn from the row, NaN or +inf if it holds one, -inf if it is empty."""
    return logits.amax(dim=-1)


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Raw log-softmax over the vocabulary.

    Args:
        logits: [S, V] float64 on the CPU.
    Returns:
        [S, V] of the same dtype; cast to float32 where it leaves the engine.
    """
    require(logits.dim() == 2, "log_probabilities", "logits [S, V]", logits)
    return LOG_PROBABILITIES.on(logits)(logits)
