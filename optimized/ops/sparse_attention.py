"""Attention of each row over its window and its selected compressed entries. Knows nothing about how they were chosen.

The softmax maximum is an integer power of two (design: rescaling is then exact): n = ceil of the largest s * log2(e),
the sink included; the numerator uses bf16(2^(s * log2(e) - n)), the denominator the unrounded weights.
Source: V4.1 model specification §4.7.
"""

from __future__ import annotations

import torch

from optimized.ops.packed import Packed
from optimized.ops.registry import Operation, require

SPARSE_ATTENTION = Operation("sparse_attention", cuda="FlashMLA or a TileLang kernel")


def sparse_attention(
    q: torch.Tensor,
    rows: Packed,
    ring: Packed,
    window_index: torch.Tensor,
    entries: Packed | None,
    entry_index: torch.Tensor | None,
    sink: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One KV head shared by all query heads, K = V.

    Args:
        q: [M, H, d] bf16.
        rows: [N, d], [N, d/32]: FP8 window KV of this step's rows.
        ring: [E, d], [E, d/32]: FP8 window KV of earlier positions, flat entries.
        window_index: [M, W] int64: i < N a row, i >= N the ring entry i - N, -1 nothing.
        entries: [C, d/2], [C, d/16]: compressed KV, E2M1 with E4M3 scales, flat entries; None with ratio 0.
        entry_index: [M, k] int64 flat entries, -1 nothing; None with ratio 0.
        sink: [H], joins the denominator only, not scaled.
        scale: of q . k.
    Returns:
        [M, H, d] bf16. A row that sees nothing gives 0.
    """
    law = q.dim() == 3 and rows.codes.shape[1] == q.shape[2] and window_index.shape[0] == q.shape[0]
    law = law and (entries is None) == (entry_index is None) and sink.shape == q.shape[1:2]
    require(law, "sparse_attention", "q [M, H, d], rows [N, d], window_index [M, W]", q, rows.codes, window_index, sink)
    return SPARSE_ATTENTION.on(q)(q, rows, ring, window_index, entries, entry_index, sink, scale)
