"""n-gram memory: hash of token ids to table rows, the rows' lookup, and the gate that adds them to the stream.

Knows ids, tables and vectors; knows nothing about tokenizers or about where ids come from.
Source: V4.1 model specification §6 (DeepSeek-V4.1 inference/engram.py).
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

ENGRAM_HASH = Operation("engram_hash")
ENGRAM_LOOKUP = Operation("engram_lookup")
ENGRAM_GATE = Operation("engram_gate")


def engram_hash(
    history: torch.Tensor, multipliers: torch.Tensor, primes: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """Table rows of each token: exact int64 arithmetic.

    Args:
        history: [M, G] int64 compressed ids at look-back 0 .. G - 1, padding already in place.
        multipliers: [G] int64. primes: [G - 1, heads] int64. offsets: [(G - 1) * heads] int64.
    Returns:
        [M, (G - 1) * heads] int64, n-gram sizes 2 .. G outermost.
    """
    law = history.shape[1:] == multipliers.shape and primes.shape[0] + 1 == history.shape[1]
    law = law and offsets.shape[0] == primes.numel() and history.dtype == torch.int64
    require(
        law, "engram_hash", "history [M, G] int64, multipliers [G], primes [G-1, heads]", history, multipliers, primes
    )
    return ENGRAM_HASH.on(history)(history, multipliers, primes, offsets)


def engram_lookup(rows: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bf16 of the FP8 table's rows, side by side.

    Args:
        rows: [M, columns] int64. codes: [R, k] uint8 E4M3. scales: [R, k/32] uint8 UE8M0.
    Returns:
        [M, columns * k] bf16.
    """
    law = codes.shape[1] == 32 * scales.shape[1] and codes.shape[0] == scales.shape[0]
    require(law, "engram_lookup", "codes [R, k], scales [R, k/32]", codes, scales)
    return ENGRAM_LOOKUP.on(codes)(rows, codes, scales)


def engram_gate(h: torch.Tensor, memory: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """h_c + gate_c * value, gate_c from the normalised product of h_c and key_c; one rounding to bf16.

    Args:
        h: [M, C, D] bf16.
        memory: [M, (C + 1) * D] bf16: C keys, then the value that all copies share.
        weight: [C, D], the product of the query and the key weight.
        eps: of both root-mean-squares.
    Returns:
        [M, C, D] bf16.
    """
    law = memory.shape == (h.shape[0], (h.shape[1] + 1) * h.shape[2]) and weight.shape == h.shape[1:]
    require(law, "engram_gate", "h [M, C, D], memory [M, (C+1)*D], weight [C, D]", h, memory, weight)
    return ENGRAM_GATE.on(h)(h, memory, weight, eps)
