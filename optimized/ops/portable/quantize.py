"""Quantisers in float32 on bf16 input, ties to the even code."""

from __future__ import annotations

import torch

from optimized.ops.portable import tables
from optimized.ops.registry import register


def _pack_e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """[..., K] float32 to [..., K/2] uint8; magnitudes above 6 saturate, a zero keeps its sign."""
    bounds = tables.e2m1_bounds(scaled.device)
    magnitude = torch.bucketize(scaled.abs(), bounds, right=True, out_int32=True).to(torch.uint8)
    codes = magnitude | (torch.signbit(scaled).to(torch.uint8) << 3)
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


@register("quantize_fp8")
def quantize_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] bf16 to [..., K] and [..., K/32] uint8."""
    scaled, code = tables.fp8_blocks(x)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8).view(x.shape), code.to(torch.uint8)


@register("quantize_mxfp4")
def quantize_mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] bf16 to [..., K/2] and [..., K/32] uint8."""
    groups = x.float().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(dim=-1).clamp_(min=6 * 2.0**-126)
    code = tables.power_of_two_at_or_above(largest.mul_(tables.INVERSE_6))
    scaled = groups / tables.power_of_two(code)[..., None]
    return _pack_e2m1(scaled.flatten(-2)), code.to(torch.uint8)


@register("quantize_nvfp4")
def quantize_nvfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., K] bf16 to [..., K/2] and [..., K/16] uint8. x / scale is a true division."""
    groups = x.float().unflatten(-1, (-1, 16))
    largest = groups.abs().amax(dim=-1).clamp_(min=6 * 2.0**-9)
    # By a tensor: by a number, CUDA would multiply with its reciprocal, and ties of E4M3 would be lost.
    scale = (largest / largest.new_full((), 6.0)).clamp_(max=448.0).to(torch.float8_e4m3fn)
    scaled = groups / scale.float()[..., None]
    return _pack_e2m1(scaled.flatten(-2)), scale.view(torch.uint8)
