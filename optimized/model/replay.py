"""Bounded replay: which rows of a step enter the decoder layers, and all that is keyed by row laid out anew over them.

Decoder layers are those from the last KV source on. That source's compressed KV and index keys are written for every
row; then rows before their request's replay start can be dropped (`compact`) or kept with cut windows (`mask`): rows
from the start on have the same bits. Knows rows and positions; knows nothing about weights.
Source: the serving specification, section 3.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from optimized.model.caches import CacheGeometry
from optimized.model.rope import RopeFrequencies
from optimized.model.selections import Selections
from optimized.model.step import KeptRows, Step, StepInputs, derive_step
from reference.spec.config import ModelConfig


@dataclass(frozen=True)
class RowState:
    """What flows from layer to layer.

    h: [N, C, D] bf16. pre: [N, C]. ids: [N, max_ngram] Engram ids, None without. taps: [N, D] each, for the draft.
    """

    h: torch.Tensor
    pre: torch.Tensor
    ids: torch.Tensor | None
    taps: list[torch.Tensor]
    step: Step
    selections: Selections

    def compacted(
        self, kept: KeptRows, config: ModelConfig, geometry: CacheGeometry, theta: RopeFrequencies
    ) -> RowState:
        """The same over the kept rows alone; candidates of the old rows are forgotten."""
        rows = kept.rows
        step = derive_step(compact_inputs(self.step.inputs, kept), config, geometry, theta)
        return RowState(
            self.h.index_select(0, rows),
            self.pre.index_select(0, rows),
            None if self.ids is None else self.ids.index_select(0, rows),
            [tap.index_select(0, rows) for tap in self.taps],
            step,
            self.selections.compacted(step, rows),
        )


def select_rows(
    query_start: np.ndarray, first_positions: np.ndarray, replay_starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that `compact` keeps: of each request those from its replay start on, and one placeholder if there is none.

    Args:
        query_start: [R + 1] int64. first_positions, replay_starts: [R] int64.
    Returns:
        kept flat rows, ascending [M] int64, and their query_start [R + 1] int64.
    """
    counts = np.diff(query_start)
    dropped = np.clip(replay_starts - first_positions, 0, np.maximum(counts - 1, 0))  # [R]
    kept = np.arange(query_start[-1]) >= np.repeat(query_start[:-1] + dropped, counts)  # [N]
    return np.flatnonzero(kept), np.concatenate(([0], np.cumsum(counts - dropped)))


def compact_inputs(inputs: StepInputs, kept: KeptRows) -> StepInputs:
    """The inputs of a step that has the kept rows only; sampled rows are among them."""
    positions = inputs.positions.index_select(0, kept.rows)
    return dataclasses.replace(
        inputs,
        tokens=inputs.tokens.index_select(0, kept.rows),
        positions=positions,
        row_request=inputs.row_request.index_select(0, kept.rows),
        slots=inputs.slots.index_select(0, kept.rows),
        first_rows=kept.first_rows,
        first_positions=positions.index_select(0, kept.first_rows),
        end_positions=inputs.end_positions.index_select(0, kept.rows),
        replay_starts=inputs.replay_starts.index_select(0, kept.rows),
        sample_rows=torch.searchsorted(kept.rows, inputs.sample_rows),
        query_start=kept.query_start,
        kept=None,
    )
