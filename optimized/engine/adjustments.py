"""What the parameters of some sequences change in their rows of logits, gathered for one call of the operation.

Knows sequences' parameters and counts, and the drafts before a row, which count like tokens of the output; knows
nothing about how logits are changed or drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from optimized.engine.block import Block
from optimized.engine.sequence import Sequence
from optimized.engine.token_counts import Integers
from optimized.ops.adjust_logits import Adjustments, Entries

_KINDS = ("bias", "repetition", "frequency", "presence", "banned")


@dataclass
class _Gathered:
    """Entries of one kind, row after row."""

    rows: list[Integers] = field(default_factory=list)
    ids: list[Integers] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, first: int, ids: Integers, values: np.ndarray) -> None:
        """Entries of some rows from `first` on: [n] ids, the same in each of them, and their values [rows, n]."""
        self.rows.append(np.repeat(np.arange(first, first + len(values)), len(ids)))
        self.ids.append(np.tile(ids, len(values)))
        self.values.append(values.ravel())

    def entries(self) -> Entries | None:
        """All of them; None if there are none."""
        if not any(len(some) for some in self.ids):
            return None
        return Entries(*(torch.from_numpy(np.concatenate(some)) for some in (self.rows, self.ids, self.values)))


def gather_adjustments(blocks: SequenceOf[Block], num_ids: int) -> Adjustments | None:
    """The adjustments of all rows of some blocks, in their order; None if no row is changed.

    Args:
        num_ids: ids from here on are never drawn, so that nothing is said about them.
    """
    kinds = {name: _Gathered() for name in _KINDS}
    first = 0
    for block in blocks:
        sequence, params = block.sequence, block.sequence.request.params
        _add_bias(kinds["bias"], first, sequence, len(block))
        _add_penalties(kinds, first, block)
        early = min(len(block), params.min_tokens - len(sequence.token_ids))  # rows before min_tokens
        if early > 0:
            banned = np.array([token for token in sequence.stop_ids if token < num_ids], dtype=np.int64)
            kinds["banned"].add(first, banned, np.zeros((early, len(banned))))
        first += len(block)
    return _adjustments(kinds)


def gather_bias(sequences: SequenceOf[Sequence]) -> Adjustments | None:
    """The bias of one row of each sequence, all that changes a draft's row; None if there is none."""
    kinds = {name: _Gathered() for name in _KINDS}
    for row, sequence in enumerate(sequences):
        _add_bias(kinds["bias"], row, sequence, 1)
    return _adjustments(kinds)


def _adjustments(kinds: dict[str, _Gathered]) -> Adjustments | None:
    entries: dict[str, Any] = {name: kind.entries() for name, kind in kinds.items()}
    return None if all(one is None for one in entries.values()) else Adjustments(**entries)


def _add_penalties(kinds: dict[str, _Gathered], first: int, block: Block) -> None:
    """Those of a block's rows from `first` on; a row before a draft has neutral values for it."""
    params, token_counts = block.sequence.request.params, block.sequence.counts
    if token_counts is None:
        return
    ids, counts, known = token_counts.through(block.drafts)  # [m], [1 + L, m]
    stands = counts > 0
    if params.repetition_penalty != 1.0:
        seen = stands | (np.arange(len(ids)) < known)
        kinds["repetition"].add(first, ids, np.where(seen, params.repetition_penalty, 1.0))
    some = stands[-1]  # in the output, before the last row at least
    ids, counts, stands = ids[some], counts[:, some], stands[:, some]
    if params.frequency_penalty:
        kinds["frequency"].add(first, ids, np.where(stands, params.frequency_penalty * counts, 0.0))
    if params.presence_penalty:
        kinds["presence"].add(first, ids, np.where(stands, params.presence_penalty, 0.0))


def _add_bias(kind: _Gathered, first: int, sequence: Sequence, rows: int) -> None:
    bias = sequence.request.params.logit_bias
    if bias:
        ids = np.fromiter(bias, np.int64, len(bias))
        kind.add(first, ids, np.broadcast_to(np.fromiter(bias.values(), np.float64, len(bias)), (rows, len(ids))))
