"""Choice of compressed entries by score: the candidate blocks, then the top k. It knows nothing about scoring.

Tie rule, everywhere: the higher score first, then the lower index. Source: V4.1 model specification §4.6.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

SELECT_CANDIDATES = Operation("select_candidates")
SELECT_TOPK = Operation("select_topk")


def select_candidates(scores: torch.Tensor, visible: torch.Tensor, block_size: int, blocks: int) -> torch.Tensor:
    """The highest blocks of each row; the block of the newest visible entry always belongs to them.

    Args:
        scores: [M, n] bf16, -inf where invisible. visible: [M] int64.
        block_size: entries a block. blocks: most blocks kept; a block without a visible entry is never kept.
    Returns:
        [M, ceil(n / block_size)] bool.
    """
    require(
        scores.dim() == 2 and visible.shape == scores.shape[:1], "select_candidates", "[M, n], [M]", scores, visible
    )
    return SELECT_CANDIDATES.on(scores)(scores, visible, block_size, blocks)


def select_topk(
    scores: torch.Tensor, visible: torch.Tensor, k: int, candidates: torch.Tensor | None = None, block_size: int = 0
) -> torch.Tensor:
    """The k highest visible entries of each row, in ascending order; -1 fills the rest, at the end.

    Args:
        scores: [M, n] bf16, -inf where invisible. visible: [M] int64.
        candidates: [M, ceil(n / block_size)] bool: only entries of these blocks; None: all.
    Returns:
        [M, k] int64.
    """
    require(scores.dim() == 2 and visible.shape == scores.shape[:1], "select_topk", "[M, n], [M]", scores, visible)
    return SELECT_TOPK.on(scores)(scores, visible, k, candidates, block_size)
