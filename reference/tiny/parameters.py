"""Master weights: float32 tensors behind a quantised checkpoint, and the values that the checkpoint would hold.

Knows the tensor plan and the number formats. Knows nothing about losses or optimizers. Tensors of one format and
shape lie in one stack, so that a step quantises a few large tensors and not hundreds of small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference import formats
from reference.spec.config import ModelConfig
from reference.spec.tensors import TensorSpec, tensor_plan

DRAFT_PREFIX = "mtp."


def value_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """The tensor plan without scales and without what the text engine leaves on disk."""
    return {name: spec for name, spec in tensor_plan(config).items() if spec.dtype != "F8_E8M0" and spec.loaded}


def round_bf16(values: Tensor) -> Tensor:
    """float32 values [...] rounded to bfloat16, kept as float32 [...]."""
    return values.to(torch.bfloat16).to(torch.float32)


def round_fp8_tiles(values: Tensor) -> Tensor:
    """float32 [n, N, K] (N a multiple of 32, or n = 1) as an FP8 checkpoint holds them: [n, N, K]."""
    return formats.decode_fp8_tiles(*formats.encode_fp8_tiles(values.flatten(0, 1))).view_as(values)


def round_fp8_rows(values: Tensor) -> Tensor:
    """float32 [..., R, K] as an Engram table holds them: [..., R, K]."""
    return formats.decode_fp8_rows(*formats.encode_fp8_rows(values))


def round_fp4_rows(values: Tensor) -> Tensor:
    """float32 [..., N, K] as a packed FP4 expert holds them: [..., N, K]."""
    return formats.decode_fp4_rows(*formats.encode_fp4_rows(values))


def keep_float32(values: Tensor) -> Tensor:
    """float32 tensors are stored as they are."""
    return values


def rounding_of(spec: TensorSpec) -> Callable[[Tensor], Tensor]:
    """The function that takes master weights to stored values."""
    if spec.dtype == "F8_E4M3":
        return round_fp8_rows if spec.is_table else round_fp8_tiles
    return {"BF16": round_bf16, "F32": keep_float32, "I8": round_fp4_rows}[spec.dtype]


class StraightThrough(torch.autograd.Function):
    """Stored values forward, the identity backward."""

    @staticmethod
    def forward(context: Any, master: Tensor, rounding: Callable[[Tensor], Tensor]) -> Tensor:
        return rounding(master).view_as(master).clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass
class Stack:
    """Tensors of one format, shape and role. master: float32 [n, *shape], in the order of `names`."""

    names: list[str]
    rounding: Callable[[Tensor], Tensor]
    master: Tensor


class MasterWeights:
    """The trainable part of a checkpoint.

    Args:
        values: initial value of every tensor, float32, by name.
        specs: the part of the plan that is trained, by name.
        role: tensors whose names have different roles lie in different stacks.
        device: where the masters live.
    """

    def __init__(
        self,
        values: Mapping[str, Tensor],
        specs: Mapping[str, TensorSpec],
        role: Callable[[str], str],
        device: torch.device,
    ) -> None:
        members: dict[tuple[Any, ...], list[str]] = {}
        for name, spec in specs.items():
            alone = rounding_of(spec) is round_fp8_tiles and spec.shape[0] % formats.FP8_TILE
            key = (role(name), spec.dtype, spec.value_shape, rounding_of(spec), name if alone else "")
            members.setdefault(key, []).append(name)
        self.stacks: dict[str, Stack] = {}
        for (kind, dtype, shape, rounding, _), names in members.items():
            master = torch.stack([values[name].to(torch.float32) for name in names]).to(device)
            label = f"{kind} {dtype} {'x'.join(map(str, shape))} {names[0]}"
            self.stacks[label] = Stack(names, rounding, master.requires_grad_())

    def values(self) -> dict[str, Tensor]:
        """Stored values by name, float32; gradients reach the masters straight through the rounding."""
        return {
            name: value
            for stack in self.stacks.values()
            for name, value in zip(stack.names, StraightThrough.apply(stack.master, stack.rounding), strict=True)
        }

    def masters(self) -> Iterable[tuple[str, Tensor]]:
        """(label, master) of every stack."""
        return ((label, stack.master) for label, stack in self.stacks.items())
