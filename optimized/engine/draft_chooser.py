"""Chooses the drafts of blocks, slot after slot, from what the draft says of each.

Knows what a request changes in a draft's row; knows nothing about how a draft's logits are made or how it is verified.
Source: serving specification §1.3.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from optimized.ops.adjust_logits import Adjustments, adjust_logits
from optimized.ops.sample import SamplingRows, draw, process_logits


class DraftChooser:
    """Chooses the drafts of A blocks, slot after slot; an ``optimized.model.draft.Choose`` that reads no device.

    A draft's row has its request's bias, temperature and filters, but neither penalties nor masks. Slots from nextn on
    are no drafts: they take the argmax.
    """

    def __init__(
        self, sampling: SamplingRows, bias: Adjustments | None, num_ids: int, nextn: int, *, keep_rows: bool
    ) -> None:
        """
        Args:
            sampling: of A rows, at the positions of the first drafts.
            keep_rows: whether verification will ask what the drafts were drawn from.
        """
        self._sampling = sampling
        self._bias = bias
        self._num_ids = num_ids
        self._nextn = nextn
        self._kept: list[torch.Tensor] | None = [] if keep_rows else None

    def __call__(self, logits: torch.Tensor, slot: int) -> torch.Tensor:
        """(logits [A, V] of a slot, slot) -> token ids [A]; called slot after slot."""
        if slot >= self._nextn:
            return torch.argmax(logits, dim=1)
        known = logits.double()  # [A, V]
        if self._num_ids < known.shape[1]:
            known = known.clone()
            known[:, self._num_ids :] = -torch.inf
        if self._bias is not None:
            known = adjust_logits(known, self._bias)
        sampling = replace(self._sampling, position=self._sampling.position + slot)
        processed = process_logits(known, sampling)
        if self._kept is not None:
            self._kept.append(processed)
        return draw(processed, sampling)

    @property
    def rows(self) -> torch.Tensor | None:
        """[A, nextn, V] float64, what the drafts were drawn from, once all are chosen; None if nothing was kept."""
        return torch.stack(self._kept, dim=1) if self._kept else None
