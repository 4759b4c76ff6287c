"""n-gram memory of the layers that have one: ids of each row and its past, table rows, gate.

Knows compressed ids and one layer's weights; knows nothing about tokenizers. Source: V4.1 model specification §6.
"""

from __future__ import annotations

import torch

from optimized.model.caches import Caches
from optimized.model.step import Step
from optimized.model.weights import EngramWeights
from optimized.ops.engram import engram_gate, engram_hash, engram_lookup
from optimized.ops.linear import linear
from optimized.ops.store_entries import store_entries


def history(ids: torch.Tensor, step: Step, caches: Caches, pad: int) -> torch.Tensor:
    """Compressed ids of each row and the positions before it; positions before 0 are padding. Keeps the rows' ids.

    Args:
        ids: [N] int64. pad: compressed id of padding.
    Returns:
        [N, max_ngram] int64, by look-back distance.
    """
    past = torch.cat((ids, caches.engram_ids))[step.history_index]
    store_entries(caches.engram_ids, step.history_place, ids)
    return torch.cat((ids[:, None], torch.where(step.history_exists, past, pad)), dim=1)


def remember(h: torch.Tensor, ids: torch.Tensor, weights: EngramWeights, eps: float) -> torch.Tensor:
    """The stream with the memory of its n-grams added.

    Args:
        h: [N, C, D] bf16. ids: [N, max_ngram], as `history` gives them.
    """
    rows = engram_hash(ids, weights.multipliers, weights.primes, weights.offsets)
    memory = linear(engram_lookup(rows, weights.codes, weights.scales), weights.wkv)
    return engram_gate(h, memory, weights.gate, eps)
