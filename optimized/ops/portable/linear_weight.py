"""Weights as float64 matmul operands, dequantised once at load time. Fit for models that fit in memory eightfold."""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.portable import tables
from optimized.ops.registry import register


def _weight(values: torch.Tensor, quantizes_input: bool) -> LinearWeight:
    """values: [N, K] or [G, N, K] float64."""
    outputs, inputs = values.shape[-2:]
    groups = values.shape[0] if values.dim() == 3 else 0
    return LinearWeight(inputs, outputs, groups, quantizes_input, values.transpose(-1, -2).contiguous())


@register("prepare_fp8_weight")
def prepare_fp8_weight(codes: torch.Tensor, scales: torch.Tensor) -> LinearWeight:
    """E4M3 values times their tile's scale, exact in float64."""
    rows, columns = codes.shape[-2:]
    scale = tables.look_up(tables.ue8m0_values(codes.device), scales)
    scale = scale.repeat_interleave(32, dim=-2)[..., :rows, :].repeat_interleave(32, dim=-1)[..., :columns]
    return _weight(tables.look_up(tables.e4m3_values(codes.device), codes) * scale, quantizes_input=True)


@register("prepare_fp4_weight")
def prepare_fp4_weight(packed: torch.Tensor, scales: torch.Tensor) -> LinearWeight:
    """E2M1 values times their group's scale, exact in float64."""
    return _weight(tables.dequantize_mxfp4(packed, scales), quantizes_input=True)


@register("prepare_dense_weight")
def prepare_dense_weight(values: torch.Tensor) -> LinearWeight:
    """bf16 or fp32 values, widened."""
    return _weight(values.double(), quantizes_input=False)
