"""Running a training step fast: compiled sub-steps, and a whole step replayed as one CUDA graph.

Knows functions and static tensors. Knows nothing about the model's meaning or the schedule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from reference import formats
from reference.model import attention, hyper_connections, indexer, linear, moe, norm, rope
from reference.tiny import batched_experts

WARM_UP_STEPS = 3
COMPILED = (
    (linear, ("quantized_linear", "bf16_linear")),
    (norm, ("rms_norm",)),
    (hyper_connections, ("mix", "collapse", "expand")),
    (rope, ("rotate",)),
    (attention, ("core",)),
    (indexer, ("scores",)),
    (batched_experts, ("weighted_sum",)),
    (formats, ("encode_fp4_rows", "encode_fp8_tiles", "encode_fp8_rows")),
)


def batch_experts() -> None:
    """Let the reference run all experts of a layer in one product."""
    moe.moe = batched_experts.batched_moe


@contextlib.contextmanager
def compiled_substeps() -> Iterator[None]:
    """Inside, the element-wise heavy sub-steps of the reference are their compiled selves (same formulas, fused)."""
    torch._dynamo.config.recompile_limit = 256
    torch._inductor.config.emulate_precision_casts = True  # keep the bf16 rounding of fused values
    plain = [(module, name, getattr(module, name)) for module, names in COMPILED for name in names]
    for module, name, function in plain:
        setattr(module, name, torch.compile(function, dynamic=False))
    try:
        yield
    finally:
        for module, name, function in plain:
            setattr(module, name, function)


class PlainStep:
    """Calls the step function with its inputs on the device."""

    def __init__(self, step: Callable[..., Tensor], device: torch.device) -> None:
        self.step = step
        self.device = device

    def __call__(self, *inputs: np.ndarray) -> Tensor:
        """The step's metrics."""
        return self.step(*(torch.from_numpy(array).to(self.device) for array in inputs))


class CapturedStep:
    """Captures the step function in a CUDA graph at its first call; inputs must keep their shapes.

    The warm-up steps before the capture are real updates on the first batch.
    """

    def __init__(self, step: Callable[..., Tensor], device: torch.device) -> None:
        self.step = step
        self.device = device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor] = []
        self.metrics = torch.zeros(())

    def __call__(self, *inputs: np.ndarray) -> Tensor:
        """The step's metrics, valid until the next call."""
        if self.graph is None:
            self.inputs = [torch.from_numpy(array).to(self.device) for array in inputs]
            self.graph = self._captured()
        else:
            for static, array in zip(self.inputs, inputs, strict=True):
                static.copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        self.graph.replay()
        return self.metrics

    def _captured(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP_STEPS):
                self.step(*self.inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.metrics = self.step(*self.inputs)
        return graph
