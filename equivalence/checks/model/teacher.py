"""Teacher forcing: the recorded inputs of every sub-step of a layer, in the rows that the pack kept.

Knows the keys of a recording and which tensors feed which sub-step; compares nothing. A tensor of which only the last
rows were kept is used in those rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from equivalence.checks.model import nudged
from equivalence.compare import bf16_codes
from equivalence.packs import Recording
from reference.model import ReferenceModel, hyper_connections, norm
from reference.model.weights import Weights
from reference.numerics import Numerics
from reference.spec import ModelConfig


class Rows(NamedTuple):
    """values: [R, ...] in the compute dtype; start: index of the first row."""

    values: Tensor
    start: int

    def since(self, start: int) -> Tensor:
        """The rows from `start` on."""
        return self.values[start - self.start :]


def join(*rows: Rows) -> tuple[int, tuple[Tensor, ...]]:
    """The rows that all of them hold: the first such row, and each one's values from there on."""
    start = max(each.start for each in rows)
    return start, tuple(each.since(start) for each in rows)


class Teacher:
    """The recorded inputs of one mode of one pack.

    model: the reference in the mode's numerics; prompt: int64 [S]; recording: what the pack holds; wide: look
    further for roundings that explain a quantised value.
    """

    def __init__(self, model: ReferenceModel, prompt: Tensor, recording: Recording, wide: bool = False) -> None:
        self.model = model
        self.prompt = prompt
        self.recording = recording
        unquantized = dataclasses.replace(model.numerics, quantize_caches=False)
        self.unquantized = [unquantized, *nudged.alternatives(unquantized)[: None if wide else 2]]

    @property
    def config(self) -> ModelConfig:
        """The pack's configuration."""
        return self.model.config

    @property
    def numerics(self) -> Numerics:
        """The mode's numerics."""
        return self.model.numerics

    @property
    def length(self) -> int:
        """S, the prompt's length."""
        return self.prompt.shape[0]

    @cached_property
    def greedy(self) -> Tensor | None:
        """The recorded greedy ids, int64 [G], fed to the decode steps."""
        return self.recording.whole("greedy_ids")

    def layer_weights(self, layer: int) -> Weights:
        """The weights below `layers.<layer>`."""
        return self.model.weights.at(f"layers.{layer}")

    def positions(self, start: int) -> Tensor:
        """Prompt positions from `start` on: int64 [S - start]."""
        return torch.arange(start, self.length)

    def row_count(self, layer: int) -> int:
        """Compressed rows that the prompt makes at a layer's ratio."""
        ratio = self.config.compress_ratios[layer]
        return self.length // ratio if ratio else 0

    def recorded(self, name: str, count: int | None = None) -> Rows | None:
        """`prefill.<name>` as recorded: the whole tensor or its tail of `count` (default S) rows; None where absent."""
        found = self.recording.rows(f"prefill.{name}", self.length if count is None else count)
        if found is None:
            return None
        values, start = found
        dtype = self.numerics.compute_dtype if values.is_floating_point() else values.dtype
        return Rows(values.to(dtype), start)

    def decoded(self, name: str) -> Tensor | None:
        """`decode<j>.<name>` of every step, stacked: [G, ...]; None where a step lacks it."""
        if self.greedy is None:
            return None
        rows = [self.recording.whole(f"decode{step}.{name}") for step in range(self.greedy.shape[0])]
        if not rows or any(row is None for row in rows):
            return None
        widest = max(row.shape[-1] for row in rows if row is not None)
        padded = [_pad_last(row, widest) for row in rows if row is not None]
        values = torch.cat(padded, dim=0)  # [G, ...]
        return values.to(self.numerics.compute_dtype) if values.is_floating_point() else values

    def incoming(self, layer: int) -> Rows | None:
        """Streams [R, C, D] before Engram: the layer before, or the embedding."""
        if layer == 0:
            return Rows(self.model.embed(self.prompt), 0)
        return self.recorded(f"L{layer - 1}.h_ffn")

    def entering(self, layer: int) -> Rows | None:
        """Streams [R, C, D] that the layer's first mix and collapse read."""
        if layer in self.config.engram_layer_ids:
            return self.recorded(f"L{layer}.h_engram")
        return self.incoming(layer)

    def handed_pre(self, layer: int) -> Rows | None:
        """Collapse weights [R, C] handed over by the layer before."""
        if layer == 0:
            return Rows(hyper_connections.initial_pre(self.model.embed(self.prompt)), 0)
        return self.recorded(f"L{layer - 1}.ffn_pre")

    def has_streams(self) -> bool:
        """Whether the mode recorded residual streams of the prompt at all."""
        return self.recorded("L0.h_ffn") is not None

    def attention_input(self, layer: int, numerics: Numerics | None = None) -> Rows | None:
        """Normalised collapse [R, D] that attention reads, in the mode's numerics or others."""
        inputs = self.entering(layer), self.handed_pre(layer)
        return self._collapsed(layer, *inputs, "attn_norm", numerics or self.numerics)

    def ffn_input(self, layer: int) -> Rows | None:
        """Normalised collapse [R, D] that the experts read."""
        inputs = self.recorded(f"L{layer}.h_attn"), self.recorded(f"L{layer}.attn_pre")
        return self._collapsed(layer, *inputs, "ffn_norm", self.numerics)

    def neighbours(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Each value one step away from zero and one step towards it: what an equally good program may hold.

        A step is one bfloat16 number in the modes that round to bfloat16, else 2^-18 of the value.
        """
        if not self.numerics.round_bf16:
            return values * (1 + 2.0**-18), values * (1 - 2.0**-18)
        return _bf16_neighbour(values, 1), _bf16_neighbour(values, -1)

    def quantised(self, stored: Callable[[Numerics], Tensor], quantise: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """A quantised sub-step: first its own result, then what the quantiser makes of inputs that are as good.

        stored: the sub-step, quantiser included, [..., K]; quantise: the quantiser alone, for what it gives in numerics
        that do not quantise caches.
        """
        values = [stored(numerics) for numerics in self.unquantized]
        as_good = [each for value in values for each in (value, *self.neighbours(value))]
        return [stored(self.numerics), *(quantise(each) for each in as_good)]

    def _collapsed(
        self, layer: int, h: Rows | None, pre: Rows | None, norm_name: str, numerics: Numerics
    ) -> Rows | None:
        if h is None or pre is None:
            return None
        start, (streams, weights) = join(h, pre)  # [R, C, D], [R, C]
        u = hyper_connections.collapse(streams, weights, numerics)  # [R, D]
        weight = self.layer_weights(layer)[norm_name]  # [D]
        return Rows(norm.rms_norm(u, weight, self.config.rms_norm_eps, numerics), start)


def _pad_last(values: Tensor, width: int) -> Tensor:
    missing = width - values.shape[-1]
    return torch.nn.functional.pad(values, (0, missing), value=-1) if missing else values


def _bf16_neighbour(values: Tensor, step: int) -> Tensor:
    codes = bf16_codes(values)  # [...]
    moved = (codes.abs() + step).clamp(min=0).to(torch.int16).view(torch.bfloat16)  # [...]
    return torch.copysign(moved.to(values.dtype), values)  # [...]
