"""Scatter by index_copy."""

from __future__ import annotations

import torch

from optimized.ops.registry import register


@register("store_entries")
def store_entries(cache: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """cache [E, ...], index [M], values [M, ...]."""
    cache.index_copy_(0, index, values)
