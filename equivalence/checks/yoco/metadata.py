"""What each decoder layer is told about its rows, recorded in both modes and compared as integers.

Knows the step that the attention of a layer is given; knows no engine. A kept row is one at or after its request's
replay start; the others may be there or not, and must be seen by nobody and written where nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from equivalence.findings import Findings
from optimized.model import attention
from optimized.model.step import Step

FIELDS = ("positions", "requests", "slots", "window floor", "write slots", "window", "selected", "pages")


@dataclass
class LayerRows:
    """One decoder layer in one step.

    kept: FIELDS of the rows from the replay start on, [M, ...] int64 each. strays: how many other rows have a window
    or write to a slot that is in use. sampled: positions of the rows whose logits are wanted.
    """

    layer: int
    kept: dict[str, Tensor]
    strays: int
    sampled: Tensor


@dataclass
class Recorder:
    """Records every call of attention from the first decoder layer on, while it is entered."""

    rows: list[LayerRows] = field(default_factory=list)

    def __enter__(self) -> Recorder:
        attend = attention.attend

        def recorded(
            x: Tensor, layer: int, *, step: Step, config: Any, caches: Any, selections: Any, **rest: Any
        ) -> Tensor:
            out = attend(x, layer, step=step, config=config, caches=caches, selections=selections, **rest)
            if layer >= config.decoder_start:
                source, index_source = config.kv_source(layer), config.index_source(layer)
                entries = None
                if source is not None and index_source is not None:
                    entries = selections.entries(index_source, source, caches.sources[source])
                self.rows.append(layer_rows(layer, step, entries, caches.geometry.ring))
            return out

        self._patch = mock.patch.object(attention, "attend", recorded)
        self._patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.stop()


def layer_rows(layer: int, step: Step, entries: Tensor | None, ring: int) -> LayerRows:
    """The integers of one layer; keys among the step's rows are named by position, so that dropped rows do not show."""
    inputs = step.inputs
    count = len(inputs.positions)
    window = step.decoder_window_index  # [N, W]
    inside = inputs.positions[window.clamp(0, count - 1)]  # [N, W]
    named = torch.where(window < count, 2 * inside, 2 * (window - count) + 1)  # [N, W]
    named = torch.where(window < 0, -1, named)  # [N, W]
    write = step.decoder_ring_place  # [N]
    kept = inputs.positions >= inputs.replay_starts  # [N]
    real = inputs.positions >= 0  # [N]
    strays = ~kept & real & ((window >= 0).any(dim=1) | (write >= ring))  # [N]
    found = {
        "positions": inputs.positions,
        "requests": inputs.row_request,
        "slots": inputs.slots,
        "window floor": inputs.replay_starts,
        "write slots": torch.where(write < ring, -1, write),
        "window": named,
        "selected": inputs.positions.new_empty(count, 0) if entries is None else entries,
        "pages": inputs.page_table[inputs.row_request],
    }
    rows = {name: values[kept & real].cpu() for name, values in found.items()}
    return LayerRows(layer, rows, int(strays.sum()), inputs.positions[inputs.sample_rows].cpu())


def compare(findings: Findings, got: Recorder, want: Recorder) -> None:
    """Compare two recordings of the same steps, the second with all rows."""
    if len(got.rows) != len(want.rows):
        findings.differ("metadata", "values", f"{len(got.rows)} layers ran, want {len(want.rows)}")
        return
    for number, (mine, theirs) in enumerate(zip(got.rows, want.rows, strict=True)):
        place = f"call {number}, layer {mine.layer}"
        for name in FIELDS:
            findings.values(f"metadata {name}", place, mine.kept[name], theirs.kept[name])
        findings.values("metadata logits row", place, mine.sampled, theirs.sampled)
        if mine.strays or theirs.strays:
            detail = f"{mine.strays} rows before the start have a window or a place to write, {theirs.strays} of mask"
            findings.differ(place, "values", detail)
