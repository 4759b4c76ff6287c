"""A step plan's arrays as the model's inputs, in buffers that stay in place from step to step.

A decode step is padded to a bucket of rows and of pages, and whatever the host tells the model about it follows from
the bucket alone: few shapes occur, and each can be captured once. Padding rows are requests of their own at position -1
in slot 0 without pages; they see nothing and write where nothing is read. Knows the plan's layout and the model's input
layout; knows nothing about scheduling or about what rows compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.model.replay import select_rows
from optimized.model.step import KeptRows, StepInputs
from optimized.worker.transfer import write
from reference.spec.errors import EngineError

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
_BUCKET_STEP = 8


def bucket_rows(rows: int) -> int:
    """Rows of a decode step with its padding: 1, 2, 4, then multiples of 8."""
    if rows <= _BUCKET_STEP // 2:
        return 1 << max(rows - 1, 0).bit_length()
    return -(-rows // _BUCKET_STEP) * _BUCKET_STEP


def bucket_pages(pages: int) -> int:
    """Pages a request of a decode step with its padding: powers of two."""
    return 1 << max(pages - 1, 0).bit_length()


class InputBatch:
    """Static buffers for at most `max_rows` rows of at most `max_requests` requests with at most `max_pages` pages."""

    def __init__(
        self,
        max_rows: int,
        max_requests: int,
        max_pages: int,
        page_size: int,
        device: torch.device,
        *,
        compact: bool = False,
    ) -> None:
        """
        Args:
            page_size: tokens a page.
            compact: rows before their request's replay start do not enter decoder layers.
        """
        shapes = _buffer_shapes(max_rows, max_requests, max_pages)
        made = {name: torch.from_numpy(np.zeros(shape, dtype=np.int64)).to(device) for name, shape in shapes.items()}
        self._rows, self._page_table, self._wanted = made["rows"], made["page_table"], made["wanted"]
        self._lists = made["lists"]
        self._max_pages, self._page_size = max_pages, page_size
        self._compact = compact

    @staticmethod
    def planned_bytes(max_rows: int, max_requests: int, max_pages: int) -> int:
        """Bytes of the buffers."""
        return 8 * sum(int(np.prod(shape)) for shape in _buffer_shapes(max_rows, max_requests, max_pages).values())

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Everything that was allocated."""
        return [self._rows, self._page_table, self._wanted, self._lists]

    def fill(
        self, plan: StepPlan, more_rows: NDArray[np.int64] | None = None, previous: torch.Tensor | None = None
    ) -> StepInputs:
        """Copy a plan in; the returned tensors are views of the buffers, valid until the next call.

        Args:
            more_rows: [E] flat rows of a prefill plan whose logits are wanted too, after the sampled ones.
            previous: [R'] int64, the token that each request of the plan in flight was given, on the device; rows that
                the plan leaves open (token -1) take theirs from it.
        Raises:
            EngineError: the plan leaves rows open, and there is no `previous`.
        """
        starts = np.asarray(plan.query_start, dtype=np.int64)
        wanted = np.asarray(plan.sample_rows, dtype=np.int64)
        wanted = wanted[wanted >= 0]
        if more_rows is not None:
            wanted = np.concatenate((wanted, more_rows))
        rows, table = _row_fields(plan, starts), np.asarray(plan.page_table, dtype=np.int64)
        last = int(np.max(plan.kv_lens, initial=1)) - 1
        if plan.kind == "decode":
            width = min(bucket_pages(table.shape[1]), self._max_pages)
            last = width * self._page_size - 1
            extra = np.arange(bucket_rows(plan.num_rows) - plan.num_rows)
            rows = np.concatenate((rows, _padding_fields(plan.num_rows + extra, len(table) + extra)), axis=1)
            table = np.pad(table, ((0, len(extra)), (0, width - table.shape[1])))
            starts = np.concatenate((starts, plan.num_rows + 1 + extra))
            wanted = np.concatenate((wanted, plan.num_rows + extra))
        total = rows.shape[1]
        write(self._rows[:, :total], rows)
        self._take_previous(plan, previous)
        pages = write(self._page_table[: table.shape[0], : table.shape[1]], table)
        fields = {name: self._rows[index, :total] for index, name in enumerate(_ROW_FIELDS)}
        return StepInputs(
            **fields,
            page_table=pages,
            sample_rows=write(self._wanted[: len(wanted)], wanted),
            query_start=starts.tolist(),
            max_position=last,
            kept=self._kept(plan, starts) if self._compact and plan.kind == "prefill" else None,
        )

    def _take_previous(self, plan: StepPlan, previous: torch.Tensor | None) -> None:
        """Open tokens from the results of the step in flight, without a look at them."""
        open_requests = np.flatnonzero(plan.previous_rows >= 0)
        if not len(open_requests):
            return
        if previous is None:
            raise EngineError(f"step {plan.step_id} needs tokens of a step in flight, but there is none")
        rows = self._list(0, np.asarray(plan.query_start, dtype=np.int64)[open_requests])
        sources = self._list(1, np.asarray(plan.previous_rows, dtype=np.int64)[open_requests])
        self._rows[0].index_copy_(0, rows, previous.index_select(0, sources))

    def _kept(self, plan: StepPlan, starts: np.ndarray) -> KeptRows | None:
        """The rows that go on into decoder layers; None if that is all of them."""
        counts = np.diff(starts)
        floors = np.asarray(plan.replay_starts, dtype=np.int64)
        kept, kept_start = select_rows(starts, np.asarray(plan.kv_lens, dtype=np.int64) - counts, floors)
        if len(kept) == starts[-1]:
            return None
        first = np.repeat(kept_start[:-1], np.diff(kept_start))
        return KeptRows(self._list(0, kept), self._list(1, first), kept_start.tolist())

    def _list(self, index: int, values: np.ndarray) -> torch.Tensor:
        return write(self._lists[index, : len(values)], values)


def _buffer_shapes(max_rows: int, max_requests: int, max_pages: int) -> dict[str, tuple[int, ...]]:
    rows, requests = max_rows + _BUCKET_STEP, max_requests + _BUCKET_STEP
    return {
        "rows": (len(_ROW_FIELDS), rows),
        "page_table": (requests, max_pages),
        "wanted": (2 * rows,),
        "lists": (2, rows),
    }


def _row_fields(plan: StepPlan, starts: np.ndarray) -> np.ndarray:
    """[fields, N] int64 in the order of _ROW_FIELDS."""
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
    return np.concatenate((np.stack((plan.tokens, plan.positions)), np.repeat(per_request, counts, axis=1)))


def _padding_fields(rows: np.ndarray, requests: np.ndarray) -> np.ndarray:
    """[fields, n] of padding rows, each a request of its own."""
    zeros = np.zeros(len(rows), dtype=np.int64)
    return np.stack((zeros, zeros - 1, requests, zeros, rows, zeros, zeros, zeros))
