"""One step's rows as the model reads them: what the worker fills in, and the indices that follow from it.

Every index is computed on the device from a few flat integer arrays, so that a decode step can be captured with static
buffers. Knows positions, slots and pages as numbers; knows nothing about weights or requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.model.caches import CacheGeometry
from optimized.model.rope import RopeFrequencies, Rotation, rotation
from reference.spec.config import ModelConfig


@dataclass(frozen=True)
class KeptRows:
    """Rows that go on into decoder layers.

    rows: [M] int64 flat rows, ascending. first_rows: [M] index among them of the request's first.
    query_start: R + 1 offsets among them, on the host.
    """

    rows: torch.Tensor
    first_rows: torch.Tensor
    query_start: list[int]


@dataclass(frozen=True)
class StepInputs:
    """Flat rows of R requests, request after request; a request's rows have consecutive positions.

    tokens, positions: [N] int64; position -1: a padding row, which sees nothing. row_request: [N] row of the page
    table. slots: [N] the request's state slot.
    first_rows: [N] flat index of the request's first row. first_positions: [N] its position.
    end_positions: [N] position after the request's last row. replay_starts: [N] the request's replay start.
    page_table: [R, P] int64, 0 = no page. sample_rows: [S] rows whose logits are wanted.
    query_start: R + 1 row offsets, on the host; None: a decode step, whose rows are counted on the device.
    max_position: at least the highest position, on the host.
    kept: rows that go on into decoder layers; None: all.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    row_request: torch.Tensor
    slots: torch.Tensor
    first_rows: torch.Tensor
    first_positions: torch.Tensor
    end_positions: torch.Tensor
    replay_starts: torch.Tensor
    page_table: torch.Tensor
    sample_rows: torch.Tensor
    query_start: list[int] | None
    max_position: int
    kept: KeptRows | None = None

    def earlier(self, lookback: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the data of earlier positions is: in this step's rows, or in a ring of `size` entries a slot.

        Args:
            lookback: [K] int64, distance to each row's position.
        Returns:
            index [N, K] (i < N a row, i >= N the flat ring entry i - N), position [N, K] (negative: does not exist).
        """
        position = self.positions[:, None] - lookback
        in_step = self.first_rows[:, None] + (position - self.first_positions[:, None])
        in_ring = len(self.positions) + self.slots[:, None] * size + position % size
        return torch.where(position >= self.first_positions[:, None], in_step, in_ring), position

    def place(self, size: int) -> torch.Tensor:
        """[N] flat ring entry that keeps each row; rows that later rows of the step overwrite go to slot 0."""
        return self._place(self.positions >= self.end_positions - size, size)

    def replayed_place(self, size: int) -> torch.Tensor:
        """[N] like `place`; rows before the replay start go to slot 0 too."""
        kept = (self.positions >= self.end_positions - size) & (self.positions >= self.replay_starts)
        return self._place(kept, size)

    def _place(self, kept: torch.Tensor, size: int) -> torch.Tensor:
        return torch.where(kept, self.slots, 0) * size + self.positions % size

    def entry(self, number: torch.Tensor, page_entries: int) -> torch.Tensor:
        """Flat page entry of compressed entries by number; -1 stays -1.

        Args:
            number: [N, k] int64.
        """
        column = (number.clamp(min=0) // page_entries).clamp(max=self.page_table.shape[1] - 1)
        page = self.page_table[self.row_request[:, None], column]
        return torch.where(number < 0, -1, page * page_entries + number % page_entries)


@dataclass(frozen=True)
class RatioIndices:
    """Indices that depend on a compress ratio only.

    visible: [N] entries that each row sees. visible_limit: at least the largest of them, on the host.
    group_rotation: of the position of each row's group's first token.
    group_index: [N, ratio] tokens of the group that the row closes (see `StepInputs.earlier`), None with ratio 1.
    open_place: [N] where the row's values and gates are kept, None with ratio 1.
    entry_place: [N] flat page entry that the row closes; rows that close none go to page 0.
    """

    visible: torch.Tensor
    visible_limit: int
    group_rotation: Rotation
    group_index: torch.Tensor | None
    open_place: torch.Tensor | None
    entry_place: torch.Tensor


@dataclass(frozen=True)
class Step:
    """The rows and every index that a layer needs.

    window_index, decoder_window_index: [N, W] keys of each row's window (`StepInputs.earlier`, -1 = none); the second
    stops at the replay start and serves the layers from the last KV source on. ring_place, decoder_ring_place: [N],
    likewise.
    history_index, history_exists: [N, max_ngram - 1] earlier tokens of Engram; history_place: [N].
    """

    inputs: StepInputs
    plain: Rotation
    compressed: Rotation
    window_index: torch.Tensor
    decoder_window_index: torch.Tensor
    ring_place: torch.Tensor
    decoder_ring_place: torch.Tensor
    history_index: torch.Tensor
    history_exists: torch.Tensor
    history_place: torch.Tensor
    ratios: dict[int, RatioIndices]


def derive_step(inputs: StepInputs, config: ModelConfig, geometry: CacheGeometry, theta: RopeFrequencies) -> Step:
    """All indices of a step, in tensor operations alone."""
    device, positions = inputs.positions.device, inputs.positions
    lookback = torch.arange(geometry.window - 1, -1, -1, device=device)
    index, position = inputs.earlier(lookback, geometry.ring)
    window = torch.where(position >= 0, index, -1)
    decoder_window = torch.where(position >= inputs.replay_starts[:, None], window, -1)
    grams = torch.arange(1, max(2, geometry.max_ngram), device=device)
    history, past = inputs.earlier(grams, geometry.history)
    ratios = {config.compress_ratios[layer] for layer in config.kv_source_layer_ids}
    return Step(
        inputs,
        rotation(positions, theta.plain),
        rotation(positions, theta.compressed),
        window,
        decoder_window,
        inputs.place(geometry.ring),
        inputs.replayed_place(geometry.ring),
        history,
        past >= 0,
        inputs.place(geometry.history),
        {ratio: _ratio_indices(inputs, ratio, geometry, theta) for ratio in ratios},
    )


def _ratio_indices(inputs: StepInputs, ratio: int, geometry: CacheGeometry, theta: RopeFrequencies) -> RatioIndices:
    positions, per_page = inputs.positions, geometry.page_size // ratio
    group = positions // ratio
    closes = ((positions + 1) % ratio == 0) & (positions >= 0)
    entry = inputs.entry(group[:, None], per_page)[:, 0]
    group_index = open_place = None
    if ratio > 1:
        lookback = torch.arange(ratio - 1, -1, -1, device=positions.device)
        size = geometry.open_tokens(ratio)
        group_index, open_place = inputs.earlier(lookback, size)[0], inputs.place(size)
    return RatioIndices(
        (positions + 1) // ratio,
        (inputs.max_position + 1) // ratio,
        rotation(group * ratio, theta.compressed),
        group_index,
        open_place,
        torch.where(closes, entry, 0),
    )
