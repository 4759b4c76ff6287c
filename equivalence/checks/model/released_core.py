"""Attention core in the order of the released kernel: blocks of 64 list entries against a running maximum.

The packs were made in this order, and its bfloat16 weights depend on it; the reference rounds against an integer power
of two instead. Where a pack keeps only whole layers, the layers are compared with this order in the core's place, so
that one rounding does not hide the rest. Knows key lists; knows no layer. Source: V4.1 model specification §4.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from reference.model import attention
from reference.numerics import Numerics

BLOCK = 64

LOWEST = -1e30


def core(q: Tensor, kv: Tensor, listed: Tensor, sink: Tensor) -> Tensor:
    """Attention over listed rows.

    Args:
        q: [R, H, d] and kv: [N, d], bf16 values; listed: int64 [R, L], rows of kv in the kernel's order, -1 = none;
        sink: [H].
    Returns: [R, H, d] bf16 values in q's dtype. float32 inside, as the kernel.
    """
    queries, rows = q.float(), kv.float()  # [R, H, d], [N, d]
    maximum = torch.full(q.shape[:2], LOWEST)  # [R, H]
    denominator = torch.zeros(q.shape[:2])  # [R, H]
    total = torch.zeros(q.shape)  # [R, H, d]
    for begin in range(0, listed.shape[1], BLOCK):
        index = listed[:, begin : begin + BLOCK]  # [R, b]
        keys = rows[index.clamp(min=0)]  # [R, b, d]
        logits = (queries @ keys.transpose(1, 2)) * q.shape[-1] ** -0.5  # [R, H, b]
        logits = torch.where((index >= 0)[:, None], logits, -torch.inf)  # [R, H, b]
        larger = torch.maximum(maximum, logits.amax(dim=-1))  # [R, H]
        rescale = torch.exp(maximum - larger)  # [R, H]
        weight = torch.exp(logits - larger[..., None])  # [R, H, b]
        denominator = denominator * rescale + weight.sum(dim=-1)  # [R, H]
        total = total * rescale[..., None] + weight.to(torch.bfloat16).float() @ keys  # [R, H, d]
        maximum = larger
    denominator = denominator + torch.exp(sink.float() - maximum)  # [R, H]
    return (total / denominator[..., None]).to(torch.bfloat16).to(q.dtype)  # [R, H, d]


def window_list(positions: Tensor, window: int, width: int) -> Tensor:
    """Window positions of each query, oldest first, -1 behind the newest: int64 [R] -> [R, width]."""
    oldest = (positions[:, None] - window + 1).clamp(min=0)  # [R, 1]
    listed = oldest + torch.arange(width)  # [R, width]
    return torch.where(listed > positions[:, None], -1, listed)  # [R, width]


def shifted(rows: Tensor, by: int) -> Tensor:
    """Row lists [R, k] moved by an offset, -1 kept: int64 [R, k]."""
    return torch.where(rows < 0, -1, rows.long() + by)  # [R, k]


def draft_list(visible: Tensor, window: int, block: int) -> Tensor:
    """The kernel's list of a draft row: ring slots in slot order, then the block's own rows.

    Args: visible: bool [T+block], the context positions that are seen and the block.
    Returns: int64 [window+block].
    """
    length = visible.shape[0] - block
    seen = visible[:length].nonzero().flatten()  # [K]
    slots = torch.full((window,), -1)  # [window]
    slots[seen % window] = seen
    return torch.cat((slots, torch.arange(block) + length))  # [window+block]


@contextmanager
def drafting(window: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Inside, the reference's draft blocks attend in the released order.

    Yields a list that grows by one pair a block: the reference's own core and the released one, [A, B, H, d] each.
    """
    reference_core = attention.core
    cores: list[tuple[Tensor, Tensor]] = []

    def listed_core(q: Tensor, kv: Tensor, visible: Tensor, sink: Tensor, numerics: Numerics) -> Tensor:
        block = q.shape[1]
        lists = [draft_list(rows[0], window, block).expand(block, -1) for rows in visible]  # A x [B, window+B]
        parts = [core(each, keys, listed, sink) for each, keys, listed in zip(q, kv, lists, strict=True)]
        released = torch.stack(parts)  # [A, B, H, d]
        cores.append((reference_core(q, kv, visible, sink, numerics), released))
        return released

    with mock.patch.object(attention, "core", listed_core):
        yield cores
