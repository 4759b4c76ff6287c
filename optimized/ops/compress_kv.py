"""Gated pooling of a group of tokens into one latent. It knows nothing about projections, pages or rotations.

Source: V4.1 model specification §4.4.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

COMPRESS_KV = Operation("compress_kv")


def compress_kv(rows: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """bf16 of the sum over the group of softmax(gate) * value, channel by channel.

    The tokens of a group are either rows of this step or kept in the state slots (the open group), never rounded.

    Args:
        rows: [M, 2, d] values and gates of this step's rows (float64 on the CPU).
        state: [E, 2, d] the same of earlier tokens, flat entries.
        index: [M, ratio] int64: the group's tokens in ascending position; i < M is a row, i >= M the entry i - M.
    Returns:
        [M, d] bf16; rows that do not close a group get a value that nobody reads.
    """
    law = rows.shape[1:] == state.shape[1:] and rows.shape[1] == 2 and index.shape[0] == rows.shape[0]
    require(law, "compress_kv", "rows [M, 2, d], state [E, 2, d], index [M, ratio]", rows, state, index)
    return COMPRESS_KV.on(rows)(rows, state, index)
