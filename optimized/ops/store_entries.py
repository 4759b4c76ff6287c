"""Scatter of row data into cache entries. It knows nothing about pages or rings, only flat entry indices."""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

STORE_ENTRIES = Operation("store_entries")


def store_entries(cache: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """cache[index[m]] = values[m], in place.

    Indices that several rows share (entries of the reserved page or slot 0, which nothing reads) end up with one of
    the rows' values; all other indices must be distinct.

    Args:
        cache: [E, ...] one row an entry, contiguous. index: [M] int64. values: [M, ...] of the cache's dtype.
    """
    law = cache.shape[1:] == values.shape[1:] and index.shape == values.shape[:1] and cache.dtype == values.dtype
    require(law, "store_entries", "cache [E, ...], index [M], values [M, ...]", cache, index, values)
    STORE_ENTRIES.on(cache)(cache, index, values)
