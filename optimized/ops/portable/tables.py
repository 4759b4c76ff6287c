"""Decoding tables of the byte formats, and the bit tricks of the quantisers. Knows no operation.

Source: V4.1 model specification §2 and §5; OCP MX v1.0.
"""

from __future__ import annotations

import functools

import torch

_INVERSE_448 = float(torch.tensor(1 / 448, dtype=torch.float32))
INVERSE_6 = float(torch.tensor(1 / 6, dtype=torch.float32))

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_VALUES = _E2M1 + tuple(-value for value in _E2M1)


def _moved(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A table on a device, without waiting for that device: a step may be the first to ask for it."""
    return table if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True)


@functools.cache
def e4m3_values(device: torch.device) -> torch.Tensor:
    """[256] float64 value of each E4M3FN code."""
    codes = torch.arange(256, dtype=torch.uint8)
    return _moved(codes.view(torch.float8_e4m3fn).to(torch.float64), device)


@functools.cache
def e2m1_pairs(device: torch.device) -> torch.Tensor:
    """[256, 2] float64 values of the two E2M1 codes of each byte, the low nibble first."""
    values = torch.tensor(_E2M1_VALUES, dtype=torch.float64).abs_().copysign(torch.tensor(_E2M1_VALUES))
    values = values + 0.0  # code 8 is +0, as in the released table
    byte = torch.arange(256)
    return _moved(torch.stack((values[byte & 15], values[byte >> 4]), dim=1), device)


@functools.cache
def ue8m0_values(device: torch.device) -> torch.Tensor:
    """[256] float64 powers of two, code 255 is NaN."""
    values = torch.exp2(torch.arange(256, dtype=torch.float64) - 127)
    values[255] = torch.nan
    return _moved(values, device)


@functools.cache
def e2m1_bounds(device: torch.device) -> torch.Tensor:
    """[7] float32: a magnitude's code is the count of bounds at or below it; ties between codes go to the even one."""
    ties = torch.tensor((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0))
    above = torch.nextafter(ties, torch.tensor(torch.inf))
    up_at_tie = torch.tensor((False, True, False, True, False, True, False))
    return _moved(torch.where(up_at_tie, ties, above), device)


def look_up(table: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """table[codes] for uint8 codes of any shape; a table [256, n] widens the last axis n-fold."""
    found = table.index_select(0, codes.reshape(-1).int())
    if table.dim() == 1:
        return found.view(codes.shape)
    return found.view(*codes.shape[:-1], codes.shape[-1] * table.shape[1])


def dequantize_fp8(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., K] E4M3 codes and [..., K/32] UE8M0 codes to float64 [..., K], exactly."""
    values = look_up(e4m3_values(codes.device), codes).view(*scales.shape, 32)
    return (values * look_up(ue8m0_values(codes.device), scales)[..., None]).view(codes.shape)


def dequantize_mxfp4(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., K/2] packed E2M1 codes and [..., K/32] UE8M0 codes to float64 [..., K], exactly."""
    values = look_up(e2m1_pairs(packed.device), packed).view(*scales.shape, 32)
    return (values * look_up(ue8m0_values(packed.device), scales)[..., None]).flatten(-2)


def dequantize_nvfp4(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., K/2] packed E2M1 codes and [..., K/16] E4M3 codes to float64 [..., K], exactly."""
    values = look_up(e2m1_pairs(packed.device), packed).view(*scales.shape, 16)
    return (values * look_up(e4m3_values(packed.device), scales)[..., None]).flatten(-2)


def power_of_two_at_or_above(t: torch.Tensor) -> torch.Tensor:
    """UE8M0 code (int32) of the smallest power of two >= t, from the bits of a positive normal float32."""
    return (t.view(torch.int32) + 0x7FFFFF) >> 23


def power_of_two(code: torch.Tensor) -> torch.Tensor:
    """float32 2^(code - 127) of an int32 code in 1 .. 254."""
    return (code << 23).view(torch.float32)


def fp8_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled blocks of an FP8 quantisation before they are rounded to E4M3.

    Args:
        x: [..., K] bf16.
    Returns:
        clamped x / scale [..., K/32, 32] float32, scale code [..., K/32] int32.
    """
    blocks = x.float().unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(dim=-1).clamp_(min=1e-4)
    code = power_of_two_at_or_above(largest.mul_(_INVERSE_448))
    return (blocks / power_of_two(code)[..., None]).clamp_(-448.0, 448.0), code


def fake_quantize_fp8(x: torch.Tensor) -> torch.Tensor:
    """Input of an FP8 linear: [..., K] bf16 to the float64 values of its FP8 blocks."""
    scaled, code = fp8_blocks(x)
    values = look_up(e4m3_values(x.device), scaled.to(torch.float8_e4m3fn).view(torch.uint8))
    return (values * power_of_two(code).double()[..., None]).view(x.shape)
