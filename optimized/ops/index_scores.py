"""Scores of every visible index key for every query row. It knows nothing about how a selection is made.

Source: V4.1 model specification §4.5.
"""

from __future__ import annotations

import torch

from optimized.ops.packed import Packed
from optimized.ops.registry import Operation, require

INDEX_SCORES = Operation("index_scores", cuda="DeepGEMM or a TileLang kernel")


def index_scores(
    queries: Packed,
    head_weights: torch.Tensor,
    weight_scale: float,
    keys: Packed,
    page_table: torch.Tensor,
    row_request: torch.Tensor,
    query_start: list[int] | None,
    visible: torch.Tensor,
) -> torch.Tensor:
    """S_j = bf16(sum over heads of bf16(relu(bf16(q_h . k_j)) * a_h)), a_h = bf16(w_h * weight_scale); -inf where
    j >= visible.

    Args:
        queries: [M, H, d/2], [M, H, d/32]: MXFP4. head_weights: [M, H] bf16, w.
        keys: [pages, E, d/2], [pages, E, d/32]: MXFP4, E entries a page.
        page_table: [R, P] int64, 0 = no page. row_request: [M] int64 row of the page table.
        query_start: R + 1 row offsets; rows of request r are query_start[r] .. query_start[r + 1] - 1. None: few rows
            a request, and the host does not know how many.
        visible: [M] int64 entries that each row sees, at most P * E.
    Returns:
        [M, P * E] bf16.
    """
    law = queries.codes.dim() == 3 and head_weights.shape == queries.codes.shape[:2]
    law = law and keys.codes.shape[2] == queries.codes.shape[2] and visible.shape == row_request.shape
    require(law, "index_scores", "queries [M, H, d/2], keys [pages, E, d/2]", queries.codes, head_weights, keys.codes)
    scores = INDEX_SCORES.on(queries.codes)
    return scores(queries, head_weights, weight_scale, keys, page_table, row_request, query_start, visible)
