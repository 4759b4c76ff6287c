"""What the parameters of some sequences change in their rows of logits, gathered for one call of the operation.

Knows sequences' parameters and counts; knows nothing about how logits are changed or drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import torch

from optimized.engine.sequence import Sequence
from optimized.engine.token_counts import Ids
from optimized.ops.adjust_logits import Adjustments, Entries


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

    def entries(self, device: torch.device) -> Entries | None:
        """All of them; None if there are none."""
        if not any(len(some) for some in self.ids):
            return None
        parts = (np.concatenate(some) for some in (self.rows, self.ids, self.values))
        return Entries(*(torch.from_numpy(part).to(device) for part in parts))


def gather_adjustments(
    sequences: SequenceOf[Sequence], vocab_size: int, device: torch.device, allowed: torch.Tensor | None = None
) -> Adjustments | None:
    """The adjustments of S rows, one a sequence; None if no row is changed.

    Args:
        allowed: [S, V] bool, what the sequences' grammars allow; None: everything.
    """
    kinds = {name: _Gathered() for name in ("bias", "repetition", "frequency", "presence", "banned")}
    for row, sequence in enumerate(sequences):
        params = sequence.request.params
        if params.logit_bias:
            ids = np.fromiter(params.logit_bias, np.int64, len(params.logit_bias))
            kinds["bias"].add(row, ids, np.array(list(params.logit_bias.values()), dtype=np.float64))
        if sequence.counts is not None:
            ids, counts = sequence.counts.output()
            if params.repetition_penalty != 1.0:
                kinds["repetition"].add(row, sequence.counts.seen(), params.repetition_penalty)
            if params.frequency_penalty:
                kinds["frequency"].add(row, ids, params.frequency_penalty * counts.astype(np.float64))
            if params.presence_penalty:
                kinds["presence"].add(row, ids, params.presence_penalty)
        if sequence.banned:
            banned = np.array([token for token in sequence.banned if token < vocab_size], dtype=np.int64)
            kinds["banned"].add(row, banned, 0.0)
    entries = {name: kind.entries(device) for name, kind in kinds.items()}
    if allowed is None and all(one is None for one in entries.values()):
        return None
    return Adjustments(allowed=allowed, **entries)
