"""Draw of the next token from logits, and the raw log-probabilities of tokens.

Knows rows of logits and arrays of parameters; knows nothing about requests, text or stop rules.
Order: [greedy exit] temperature, top-k, top-p (on the top-k-renormalised mass), min-p, Gumbel-max. Ties: lowest id.
Source: serving specification §5 (Philox4x32-10 keyed by seed, position, role and sample).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.ops.registry import Operation, require

SAMPLE = Operation("sample")
PROCESS_LOGITS = Operation("process_logits")
PHILOX_WORDS = Operation("philox_words")
LOG_PROBABILITIES = Operation("log_probabilities")

TARGET, DRAFT, ACCEPT, RESIDUAL = range(4)


@dataclass(frozen=True)
class SamplingRows:
    """Per-row parameters, all [S] on the device of the logits.

    temperature: float64, 0 = greedy. top_k: int64, <= 0 = off. top_p: float64, 1 = off. min_p: float64, 0 = off.
    seed: int64, the 64 bits of an unsigned seed. position: int64, index of the drawn token in prompt + output.
    sample: int64, which of the request's n samples.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    sample: torch.Tensor


def philox_words(
    seed: torch.Tensor, position: torch.Tensor, sample: torch.Tensor, role: int, count: int
) -> torch.Tensor:
    """Random 32-bit words 0 .. count - 1 of each row: word & 3 of the block with counter
    (word >> 2, position, role, sample) and key (seed low, seed high).

    Args:
        seed, position, sample: [S] int64.
    Returns:
        [S, count] int64 in 0 .. 2^32 - 1.
    """
    require(seed.shape == position.shape == sample.shape, "philox_words", "[S] each", seed, position, sample)
    return PHILOX_WORDS.on(seed)(seed, position, sample, role, count)


def sample(logits: torch.Tensor, rows: SamplingRows, role: int = TARGET) -> torch.Tensor:
    """Next token of each row: argmax for temperature 0, else the largest z - ln(E) among the tokens that pass.

    NaN, +inf and rows of -inf alone are the caller's to refuse (see ``healthy``).

    Args:
        logits: [S, V] float64 on the CPU, already biased, penalised and masked.
    Returns:
        [S] int64.
    """
    require(logits.dim() == 2 and rows.seed.shape == logits.shape[:1], "sample", "logits [S, V]", logits, rows.seed)
    return SAMPLE.on(logits)(logits, rows, role)


def process_logits(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """What `sample` draws a row's token from: scaled, and -inf where a filter drops a token; a greedy row as it is.

    Args:
        logits: [S, V] float64 on the CPU, already biased, penalised and masked.
    Returns:
        [S, V] of the same dtype.
    """
    fits = logits.dim() == 2 and rows.seed.shape == logits.shape[:1]
    require(fits, "process_logits", "logits [S, V]", logits, rows.seed)
    return PROCESS_LOGITS.on(logits)(logits, rows)


def healthy(logits: torch.Tensor) -> torch.Tensor:
    """[S] bool: the row holds no NaN, no +inf and at least one finite value."""
    return torch.isfinite(logits.amax(dim=-1))


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Raw log-softmax over the vocabulary.

    Args:
        logits: [S, V] float64 on the CPU.
    Returns:
        [S, V] of the same dtype; cast to float32 where it leaves the engine.
    """
    require(logits.dim() == 2, "log_probabilities", "logits [S, V]", logits)
    return LOG_PROBABILITIES.on(logits)(logits)
