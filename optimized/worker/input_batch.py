"""A step plan's arrays as the model's inputs, in buffers that stay in place from step to step.

A decode step is padded to a bucket of rows and of pages, and whatever the host tells the model about it follows from
the bucket alone: few shapes occur, and each can be captured once. Padding rows are at position -1 in slot 0 without
pages; they see nothing and write where nothing is read. Knows the plan's layout and the model's input layout; knows
nothing about scheduling or about what rows compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.model.replay import select_rows
from optimized.model.step import KeptRows, StepInputs
from optimized.worker.decode_rows import REQUEST_FIELDS, BlockLimits, BlockResults, expand, request_fields
from optimized.worker.transfer import upload, write

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


@dataclass(frozen=True)
class Prepared:
    """A step whose inputs are in the buffers, until those of the next one are.

    wanted: rows of logits, before padding. By index of the request in the plan, [R] int64 on the device: anchors, the
    position of the row after which its next token comes (of a decode request the first row, else the last); slots,
    replay_starts; lengths, drafts that are verified.
    """

    inputs: StepInputs
    wanted: int
    anchors: torch.Tensor
    slots: torch.Tensor
    replay_starts: torch.Tensor
    lengths: torch.Tensor


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
        nextn: int = 0,
        compact: bool = False,
    ) -> None:
        """
        Args:
            page_size: tokens a page.
            nextn: most drafts of a request in a decode step.
            compact: rows before their request's replay start do not enter decoder layers.
        """
        shapes = _buffer_shapes(max_rows, max_requests, max_pages, nextn)
        made = {name: torch.from_numpy(np.zeros(shape, dtype=np.int64)).to(device) for name, shape in shapes.items()}
        self._rows, self._page_table, self._wanted = made["rows"], made["page_table"], made["wanted"]
        self._lists, self._requests = made["lists"], made["requests"]
        self._every = made["every"].copy_(torch.arange(len(made["every"])))
        self._max_pages, self._page_size, self._nextn = max_pages, page_size, nextn
        self._compact = compact

    @staticmethod
    def planned_bytes(max_rows: int, max_requests: int, max_pages: int, nextn: int = 0) -> int:
        """Bytes of the buffers."""
        shapes = _buffer_shapes(max_rows, max_requests, max_pages, nextn)
        return 8 * sum(int(np.prod(shape)) for shape in shapes.values())

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Everything that was allocated."""
        return [self._rows, self._page_table, self._wanted, self._lists, self._requests, self._every]

    def fill(
        self,
        plan: StepPlan,
        more_rows: NDArray[np.int64] | None = None,
        limits: BlockLimits | None = None,
        previous: BlockResults | None = None,
    ) -> Prepared:
        """Copy a plan in; the returned tensors are views of the buffers, valid until the next call.

        Args:
            more_rows: [E] flat rows of a prefill plan whose logits are wanted too, after the sampled ones; of a decode
                plan the logits of every row are.
            limits: what bounds a decode plan's drafts; None: the plan alone.
            previous: results of the step in flight, for requests that the plan leaves open (token -1).
        Raises:
            EngineError: the plan leaves tokens open, and there is no `previous`.
        """
        if plan.kind == "decode":
            return self._fill_decode(plan, limits, previous)
        return self._fill_prefill(plan, more_rows)

    def _fill_decode(self, plan: StepPlan, limits: BlockLimits | None, previous: BlockResults | None) -> Prepared:
        budget = None if limits is None else limits.budget
        count = plan.num_requests
        wanted = plan.num_rows if budget is None else count + budget
        longest = None if limits is None else limits.longest
        fields = request_fields(plan, self._requests.shape[1], self._nextn, longest, previous)
        requests = write(self._requests, fields)
        in_flight = previous if (plan.previous_rows >= 0).any() else None
        survival = None
        if limits is not None and limits.survival is not None:
            padded = np.pad(limits.survival, ((0, requests.shape[1] - count), (0, 0)))
            survival = upload(padded, requests.device, np.float32)
        made = expand(requests, bucket_rows(wanted), in_flight, budget, survival)
        total = len(made.tokens)
        width = min(bucket_pages(plan.page_table.shape[1]), self._max_pages)
        table = np.pad(np.asarray(plan.page_table, dtype=np.int64), ((0, 0), (0, width - plan.page_table.shape[1])))
        write(self._page_table[:count, :width], table)
        for index, name in enumerate(_ROW_FIELDS):
            self._rows[index, :total].copy_(getattr(made, name))
        inputs = StepInputs(
            **self._row_views(total),
            page_table=self._page_table[:, :width],
            sample_rows=self._every[:total],
            query_start=None,
            max_position=width * self._page_size - 1,
            kept=None,
        )
        slots, starts = (requests[REQUEST_FIELDS.index(name), :count] for name in ("slot", "replay_start"))
        return Prepared(inputs, wanted, made.anchors[:count], slots, starts, made.lengths[:count])

    def _fill_prefill(self, plan: StepPlan, more_rows: NDArray[np.int64] | None) -> Prepared:
        starts = np.asarray(plan.query_start, dtype=np.int64)
        wanted = np.asarray(plan.sample_rows, dtype=np.int64)
        wanted = wanted[wanted >= 0]
        if more_rows is not None:
            wanted = np.concatenate((wanted, more_rows))
        table = np.asarray(plan.page_table, dtype=np.int64)
        last = int(np.max(plan.kv_lens, initial=1)) - 1
        write(self._rows[:, : plan.num_rows], _row_fields(plan, starts))
        inputs = StepInputs(
            **self._row_views(plan.num_rows),
            page_table=write(self._page_table[: len(table), : table.shape[1]], table),
            sample_rows=write(self._wanted[: len(wanted)], wanted),
            query_start=starts.tolist(),
            max_position=last,
            kept=self._kept(plan, starts) if self._compact else None,
        )
        ends = np.asarray(plan.kv_lens, dtype=np.int64)
        fields = np.stack((ends - 1, plan.slots, plan.replay_starts, np.zeros_like(ends)))
        return Prepared(inputs, len(wanted), *write(self._requests[:4, : len(ends)], fields))

    def _row_views(self, total: int) -> dict[str, torch.Tensor]:
        return {name: self._rows[index, :total] for index, name in enumerate(_ROW_FIELDS)}

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


def _buffer_shapes(max_rows: int, max_requests: int, max_pages: int, nextn: int) -> dict[str, tuple[int, ...]]:
    rows = max_rows + _BUCKET_STEP
    return {
        "rows": (len(_ROW_FIELDS), rows),
        "page_table": (max_requests + 1, max_pages),  # the last row is that of padding rows: no pages
        "wanted": (2 * rows,),
        "lists": (2, rows),
        "requests": (len(REQUEST_FIELDS) + nextn, max_requests),
        "every": (max_requests * (1 + nextn) + _BUCKET_STEP,),
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
