"""Engram: n-gram hashes of the token ids look rows up in a table, and a gate adds them to the streams.

Knows token ids and streams. The hash is integer arithmetic. Source: V4.1 model specification §6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.model import linear
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


def look_back(compressed: Tensor, distance: int, pad: int) -> Tensor:
    """Compressed ids ``distance`` positions back, pad before the sequence's start: int64 [..., T] -> [..., T]."""
    if distance == 0:
        return compressed
    shifted = compressed[..., : max(compressed.shape[-1] - distance, 0)]  # [..., T - distance]
    return torch.nn.functional.pad(shifted, (compressed.shape[-1] - shifted.shape[-1], 0), value=pad)  # [..., T]


def hash_rows(compressed: Tensor, pad: int, multipliers: Tensor, primes: Tensor, offsets: Tensor) -> Tensor:
    """Table row of every (n-gram size, head) column at every position.

    Args:
        compressed: int64 [..., T], ids after the token map; pad: the compressed pad id;
        multipliers: int64 [N], one a look-back distance; primes, offsets: int64 [(N-1)·A], N-gram sizes 2..N, A heads.
    Returns: int64 [..., T, (N-1)·A].
    """
    sizes = multipliers.shape[0]
    heads = primes.shape[0] // (sizes - 1)
    running = look_back(compressed, 0, pad) * multipliers[0]  # [..., T]
    columns = []
    for distance in range(1, sizes):
        running = running ^ (look_back(compressed, distance, pad) * multipliers[distance])  # [..., T]
        mine = slice((distance - 1) * heads, distance * heads)
        columns.append(running[..., None] % primes[mine] + offsets[mine])  # [..., T, A]
    return torch.cat(columns, dim=-1)  # [..., T, (N-1)·A]


def lookup(rows: Tensor, table: Tensor) -> Tensor:
    """Concatenated table rows: ids [..., T, columns], table [R, d_engram] -> [..., T, columns·d_engram]."""
    return table[rows].flatten(-2)  # [..., T, columns·d_engram]


def gate(h: Tensor, key: Tensor, weights: Weights, config: ModelConfig) -> Tensor:
    """How much of the value enters each stream, nothing rounded.

    Args:
        h: [..., C, D] streams; key: [..., C, D].
    Returns: [..., C] in (0, 1).
    """
    eps = config.rms_norm_eps
    inverse_h = torch.rsqrt(h.square().mean(dim=-1) + eps)  # [..., C]
    inverse_key = torch.rsqrt(key.square().mean(dim=-1) + eps)  # [..., C]
    product = weights["q_weight"] * weights["k_weight"]  # [C, D]
    dot = (h * product * key).sum(dim=-1) * (inverse_h * inverse_key) * h.shape[-1] ** -0.5  # [..., C]
    return torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot))  # [..., C]


def add(h: Tensor, rows: Tensor, weights: Weights, config: ModelConfig, numerics: Numerics) -> Tensor:
    """Streams [..., T, C, D] with the gated Engram value of ``rows`` [..., T, columns] added: [..., T, C, D]."""
    embedded = lookup(rows, weights["embed"])  # [..., T, columns·d_engram]
    kv = linear.quantized_linear(embedded, weights["wkv"], config.quantized, numerics)  # [..., T, (C+1)·D]
    kv = kv.unflatten(-1, (config.hc_mult + 1, config.hidden_size))  # [..., T, C+1, D]
    key, value = kv[..., :-1, :], kv[..., -1:, :]  # [..., T, C, D], [..., T, 1, D]
    return numerics.bf16(h + gate(h, key, weights, config)[..., None] * value)  # [..., T, C, D]
