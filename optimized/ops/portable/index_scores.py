"""Index scores. Products of E2M1 values and powers of two are summed in float64, so no tiling shows in the result."""

from __future__ import annotations

import torch

from optimized.ops.packed import Packed
from optimized.ops.portable import tables
from optimized.ops.portable.rounding import ROW_TILE, batched_matmul, round_bf16
from optimized.ops.registry import register

_BLOCK_BYTES = 1 << 25  # of gathered keys at a time


def _combine_heads(dots: torch.Tensor, head_weights: torch.Tensor) -> torch.Tensor:
    """dots [M, H, n] float64, head weights [M, H] bf16 to [M, n] bf16; a product of two bf16 is rounded once."""
    weighted = torch.relu(round_bf16(dots)) * head_weights[..., None]
    return round_bf16(weighted.sum(dim=1, dtype=torch.float64))


def _keys(keys: Packed, pages: torch.Tensor) -> torch.Tensor:
    """Keys of a list of pages [n]: [n * E, d] float64."""
    values = tables.dequantize_mxfp4(keys.codes.index_select(0, pages), keys.scales.index_select(0, pages))
    return values.flatten(0, 1)


@register("index_scores")
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
    """[M, P * E] bf16."""
    query = tables.dequantize_mxfp4(*queries)
    head_weights = round_bf16(head_weights.double() * weight_scale)
    rows, heads, width = query.shape
    columns = page_table.shape[1] * keys.codes.shape[1]
    scores = torch.empty(rows, columns, dtype=torch.bfloat16, device=query.device)
    if query_start is None:  # few rows a request: several rows a product, each with keys of its own
        block = max(1, _BLOCK_BYTES // (8 * columns * width))
        for start in range(0, rows, block):
            tile = slice(start, start + block)
            tables_of_rows = page_table.index_select(0, row_request[tile])
            gathered = _keys(keys, tables_of_rows.reshape(-1)).view(-1, columns, width)
            scores[tile] = _combine_heads(batched_matmul(query[tile], gathered.transpose(1, 2)), head_weights[tile])
    else:
        for request in range(len(page_table)):
            gathered = _keys(keys, page_table[request]).t()
            for start in range(query_start[request], query_start[request + 1], ROW_TILE):
                tile = slice(start, min(start + ROW_TILE, query_start[request + 1]))
                dots = (query[tile].flatten(0, 1) @ gathered).view(-1, heads, columns)
                scores[tile] = _combine_heads(dots, head_weights[tile])
    hidden = torch.arange(columns, device=query.device) >= visible[:, None]
    return scores.masked_fill_(hidden, -torch.inf)
