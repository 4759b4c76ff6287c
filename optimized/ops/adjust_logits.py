"""What changes logits before a token is drawn: bias, penalties and masks, in this order.

Knows rows of logits and flat lists of (row, id, value); knows nothing about requests, grammars or what was counted.
-inf stays -inf. Source: serving specification §5.3, §5.5; the repetition penalty is that of CTRL (Keskar et al., 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.ops.registry import Operation, require

ADJUST_LOGITS = Operation("adjust_logits")
UNPACK_BITS = Operation("unpack_bits")


@dataclass(frozen=True)
class Entries:
    """Values of some places of a matrix of logits, no place twice.

    rows, ids: [E] int64. values: [E] float64.
    """

    rows: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Adjustments:
    """What to do to logits [S, V], in the order of the fields; None: nothing.

    bias: added. repetition: z > 0 is divided by the value, another z multiplied. frequency, presence: subtracted.
    allowed: [S, V] bool, -inf where False. banned: -inf, whatever the values.
    """

    bias: Entries | None = None
    repetition: Entries | None = None
    frequency: Entries | None = None
    presence: Entries | None = None
    allowed: torch.Tensor | None = None
    banned: Entries | None = None


def adjust_logits(logits: torch.Tensor, adjustments: Adjustments) -> torch.Tensor:
    """Logits with bias, penalties and masks applied.

    Args:
        logits: [S, V] float64 on the CPU; left as they are.
    Returns:
        [S, V] of the same dtype.
    """
    allowed = adjustments.allowed
    fits = logits.dim() == 2 and (allowed is None or allowed.shape == logits.shape)
    require(fits, "adjust_logits", "logits [S, V], allowed [S, V]", logits, *(() if allowed is None else (allowed,)))
    return ADJUST_LOGITS.on(logits)(logits, adjustments)


def unpack_bits(words: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` bits of each row of 32-bit words; bit i of a row is bit i % 32 of its word i // 32.

    Args:
        words: [S, W] int32.
    Returns:
        [S, count] bool.
    """
    fits = words.dim() == 2 and count <= 32 * words.shape[1]
    require(fits, "unpack_bits", f"words [S, W] of at least {count} bits", words)
    return UNPACK_BITS.on(words)(words, count)
