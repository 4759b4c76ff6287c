"""A step plan's arrays as the model's inputs, in buffers that stay in place from step to step.

Knows the plan's layout and the model's input layout; knows nothing about scheduling or about what rows compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from optimized.model.step import StepInputs

if TYPE_CHECKING:
    from optimized._core import StepPlan

_ROW_FIELDS = (
    "tokens",
    "positions",
    "row_request",
    "slots",
    "first_rows",
    "first_positions",
    "end_positions",
    "replay_starts",
)


class InputBatch:
    """Static buffers for at most `max_rows` rows of at most `max_requests` requests with at most `max_pages` pages."""

    def __init__(self, max_rows: int, max_requests: int, max_pages: int, device: torch.device) -> None:
        self._rows = torch.zeros(len(_ROW_FIELDS), max_rows, dtype=torch.int64, device=device)
        self._page_table = torch.zeros(max_requests * max_pages, dtype=torch.int64, device=device)
        self._sample_rows = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def fill(self, plan: StepPlan) -> StepInputs:
        """Copy a plan in; the returned tensors are views of the buffers, valid until the next call."""
        starts = np.asarray(plan.query_start, dtype=np.int64)
        counts = np.diff(starts)
        ends = np.asarray(plan.kv_lens, dtype=np.int64)
        per_request = np.stack(
            (
                np.arange(len(counts), dtype=np.int64),
                np.asarray(plan.slots, dtype=np.int64),
                starts[:-1],
                ends - counts,
                ends,
                np.asarray(plan.replay_starts, dtype=np.int64),
            )
        )
        rows = np.concatenate((np.stack((plan.tokens, plan.positions)), np.repeat(per_request, counts, axis=1)))
        total = rows.shape[1]
        self._rows[:, :total].copy_(torch.from_numpy(rows))
        table = torch.from_numpy(np.asarray(plan.page_table, dtype=np.int64))
        pages = self._page_table[: table.numel()].view(table.shape).copy_(table)
        wanted = np.asarray(plan.sample_rows, dtype=np.int64)
        wanted = wanted[wanted >= 0]
        sample_rows = self._sample_rows[: len(wanted)].copy_(torch.from_numpy(wanted))
        fields = {name: self._rows[index, :total] for index, name in enumerate(_ROW_FIELDS)}
        return StepInputs(
            **fields,
            page_table=pages,
            sample_rows=sample_rows,
            query_start=starts.tolist(),
            max_position=int(ends.max(initial=1)) - 1,
        )
