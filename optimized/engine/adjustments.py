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
from optimized.engine.token_counts import Ids
from optimized.ops.adjust_logits import Adjustments, Entries

_KINDS = ("bias", "repetition", "frequency", "presence", "banned")


@dataclass
class _Gathered:
    """Entries of one kind, row after row."""

    rows: list[Ids] = field(default_factory=list)
    ids: list[Ids] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, row: int, ids: Ids, values: np.ndarray | float) -> None:
        """Entries of one row: [n] ids and their values, or one value for all."""
        self.rows.append(np.full(len(ids), row, dtype=np.int64))
        self.ids.append(ids)
        self.values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), ids.shape))

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
    row = 0
    for block in blocks:
        for place in range(len(block)):
            _add_row(kinds, row, block.sequence, block.drafts[:place], num_ids)
            row += 1
    return _adjustments(kinds)


def gather_bias(sequences: SequenceOf[Sequence]) -> Adjustments | None:
    """The bias of one row of each sequence, all that changes a draft's row; None if there is none."""
    kinds = {name: _Gathered() for name in _KINDS}
    for row, sequence in enumerate(sequences):
        _add_bias(kinds["bias"], row, sequence)
    return _adjustments(kinds)


def _adjustments(kinds: dict[str, _Gathered]) -> Adjustments | None:
    entries: dict[str, Any] = {name: kind.entries() for name, kind in kinds.items()}
    return None if all(one is None for one in entries.values()) else Adjustments(**entries)


def _add_row(kinds: dict[str, _Gathered], row: int, sequence: Sequence, drafts: SequenceOf[int], num_ids: int) -> None:
    """What is to be done to the row after a sequence's tokens and some drafts."""
    params = sequence.request.params
    _add_bias(kinds["bias"], row, sequence)
    if sequence.counts is not None:
        ids, counts = sequence.counts.output(drafts)
        if params.repetition_penalty != 1.0:
            kinds["repetition"].add(row, sequence.counts.seen(drafts), params.repetition_penalty)
        if params.frequency_penalty:
            kinds["frequency"].add(row, ids, params.frequency_penalty * counts.astype(np.float64))
        if params.presence_penalty:
            kinds["presence"].add(row, ids, params.presence_penalty)
    if len(sequence.token_ids) + len(drafts) < params.min_tokens:
        banned = np.array([token for token in sequence.stop_ids if token < num_ids], dtype=np.int64)
        kinds["banned"].add(row, banned, 0.0)


def _add_bias(kind: _Gathered, row: int, sequence: Sequence) -> None:
    bias = sequence.request.params.logit_bias
    if bias:
        ids = np.fromiter(bias, np.int64, len(bias))
        kind.add(row, ids, np.array(list(bias.values()), dtype=np.float64))
