"""The number formats of the released checkpoint and caches: E4M3, E2M1, UE8M0, and the blocks they scale.

Knows bytes and blocks; knows nothing about layers or names. Encoders round to nearest, ties to the even code.
Source: V4.1 model specification §2 and §5 (DeepSeek-V4.1 inference/kernel.py through its ports; OCP MX v1.0).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

FP8_MAX = 448.0
FP4_MAX = 6.0
FP8_TILE = 32  # rows and columns of a weight tile; channels of an activation block and of an Engram block
MXFP4_GROUP = 32
NVFP4_GROUP = 16
UE8M0_NAN = 255

FP8_AMAX_FLOOR = 1e-4
MXFP4_AMAX_FLOOR = FP4_MAX * 2.0**-126
NVFP4_AMAX_FLOOR = FP4_MAX * 2.0**-9

_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


# ---- scalar codes ----


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3FN codes (uint8, any shape) to float32; 0x7f and 0xff are NaN."""
    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def encode_e4m3(x: Tensor) -> Tensor:
    """float32 (any shape) to E4M3FN codes (uint8), saturating at ±448."""
    return x.to(torch.float32).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


@functools.cache
def _e2m1_table(device: torch.device) -> Tensor:
    values = _E2M1_MAGNITUDES + tuple(0.0 if m == 0.0 else -m for m in _E2M1_MAGNITUDES)
    return torch.tensor(values, dtype=torch.float32, device=device)


def decode_e2m1(codes: Tensor) -> Tensor:
    """E2M1 codes 0..15 (uint8, any shape) to float32. Code 8 is +0.0, as in the released table."""
    return _e2m1_table(codes.device)[codes.long()]


def encode_e2m1(x: Tensor) -> Tensor:
    """float32 (any shape) to E2M1 codes (uint8), saturating at ±6; a negative zero keeps its sign bit (code 8)."""
    a = x.abs()
    magnitude = (a > 0.25).to(torch.uint8)
    magnitude = magnitude + (a >= 0.75)
    magnitude = magnitude + (a > 1.25)
    magnitude = magnitude + (a >= 1.75)
    magnitude = magnitude + (a > 2.5)
    magnitude = magnitude + (a >= 3.5)
    magnitude = magnitude + (a > 5.0)
    return magnitude + 8 * torch.signbit(x).to(torch.uint8)


def pack_e2m1(codes: Tensor) -> Tensor:
    """Codes [..., K] to bytes [..., K/2]: the even column in the low nibble, the odd one in the high nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] (uint8) to codes [..., K] (uint8)."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def decode_ue8m0(codes: Tensor) -> Tensor:
    """UE8M0 codes (uint8, any shape) to float32: 2^(code - 127); 255 is NaN."""
    exponent = codes.to(torch.int32)
    bits = torch.where(exponent == 0, 1 << 22, exponent << 23)  # 2^-127 is subnormal in float32
    bits = torch.where(exponent == UE8M0_NAN, 0x7FC00000, bits)
    return bits.view(torch.float32)


def encode_ue8m0_ceil(t: Tensor) -> Tensor:
    """Smallest power of two that is >= t, as a code: the exponent field, plus one if any fraction bit is set.

    Args:
        t: float32, any shape, positive and normal.
    """
    bits = t.view(torch.int32)
    exponent = (bits >> 23) & 0xFF
    fraction = bits & 0x7FFFFF
    return (exponent + (fraction != 0)).to(torch.uint8)


# ---- quantisers of activations and caches (float32 on the input, as the released kernels) ----


def fp8_block_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] to E4M3 codes [..., K] and UE8M0 codes [..., K/32] (§5.1)."""
    blocks = x.to(torch.float32).unflatten(-1, (-1, FP8_TILE))  # [..., K/32, 32]
    amax = blocks.abs().amax(dim=-1).clamp(min=FP8_AMAX_FLOOR)  # [..., K/32]
    scale_codes = encode_ue8m0_ceil(amax * torch.tensor(1 / FP8_MAX, dtype=torch.float32))  # [..., K/32]
    codes = encode_e4m3(blocks / decode_ue8m0(scale_codes)[..., None])  # [..., K/32, 32]
    return codes.flatten(-2), scale_codes


def mxfp4_group_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] to E2M1 codes [..., K] and UE8M0 codes [..., K/32] (§5.2, index queries and keys)."""
    groups = x.to(torch.float32).unflatten(-1, (-1, MXFP4_GROUP))  # [..., K/32, 32]
    amax = groups.abs().amax(dim=-1).clamp(min=MXFP4_AMAX_FLOOR)  # [..., K/32]
    scale_codes = encode_ue8m0_ceil(amax * torch.tensor(1 / FP4_MAX, dtype=torch.float32))  # [..., K/32]
    codes = encode_e2m1(groups / decode_ue8m0(scale_codes)[..., None])  # [..., K/32, 32]
    return codes.flatten(-2), scale_codes


def nvfp4_group_codes(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] to E2M1 codes [..., K] and E4M3 scale codes [..., K/16] (§5.2, compressed KV)."""
    groups = x.to(torch.float32).unflatten(-1, (-1, NVFP4_GROUP))  # [..., K/16, 16]
    amax = groups.abs().amax(dim=-1).clamp(min=NVFP4_AMAX_FLOOR)  # [..., K/16]
    scale_codes = encode_e4m3(amax / FP4_MAX)  # [..., K/16]
    codes = encode_e2m1(groups / decode_e4m3(scale_codes)[..., None])  # [..., K/16, 16]
    return codes.flatten(-2), scale_codes


def _scaled(codes: Tensor, scales: Tensor, group: int) -> Tensor:
    return (codes.unflatten(-1, (-1, group)) * scales[..., None]).flatten(-2)


def fake_fp8(x: Tensor) -> Tensor:
    """Quantise-dequantise [..., K] in FP8 blocks of 32; dtype of ``x`` is kept."""
    codes, scales = fp8_block_codes(x)
    return _scaled(decode_e4m3(codes), decode_ue8m0(scales), FP8_TILE).to(x.dtype)


def fake_mxfp4(x: Tensor) -> Tensor:
    """Quantise-dequantise [..., K] in E2M1 groups of 32 with power-of-two scales; dtype of ``x`` is kept."""
    codes, scales = mxfp4_group_codes(x)
    return _scaled(decode_e2m1(codes), decode_ue8m0(scales), MXFP4_GROUP).to(x.dtype)


def fake_nvfp4(x: Tensor) -> Tensor:
    """Quantise-dequantise [..., K] in E2M1 groups of 16 with E4M3 scales; dtype of ``x`` is kept."""
    codes, scales = nvfp4_group_codes(x)
    return _scaled(decode_e2m1(codes), decode_e4m3(scales), NVFP4_GROUP).to(x.dtype)


# ---- weights as the checkpoint stores them ----


def _power_of_two_scale(amax: Tensor, largest: float) -> Tensor:
    t = (amax / largest).clamp(min=2.0**-126)
    return encode_ue8m0_ceil(t)


def _tile_scales(scale_codes: Tensor, rows: int, columns: int) -> Tensor:
    scales = decode_ue8m0(scale_codes)  # [ceil(N/32), ceil(K/32)]
    scales = scales.repeat_interleave(FP8_TILE, dim=0)[:rows]  # [N, ceil(K/32)]
    return scales.repeat_interleave(FP8_TILE, dim=1)[:, :columns]  # [N, K]


def decode_fp8_tiles(codes: Tensor, scale_codes: Tensor) -> Tensor:
    """Dense FP8 weight: codes [N, K] and UE8M0 codes [ceil(N/32), ceil(K/32)] (uint8) to float32 [N, K], exactly."""
    return decode_e4m3(codes) * _tile_scales(scale_codes, *codes.shape)


def encode_fp8_tiles(w: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [N, K] to E4M3 codes [N, K] and one power-of-two scale per 32x32 tile [ceil(N/32), ceil(K/32)]."""
    rows, columns = w.shape
    w = w.to(torch.float32)
    padded = torch.nn.functional.pad(w.abs(), (0, -columns % FP8_TILE, 0, -rows % FP8_TILE))
    tiles = padded.unflatten(1, (-1, FP8_TILE)).unflatten(0, (-1, FP8_TILE))  # [N/32, 32, K/32, 32]
    scale_codes = _power_of_two_scale(tiles.amax(dim=(1, 3)), FP8_MAX)  # [N/32, K/32]
    return encode_e4m3(w / _tile_scales(scale_codes, rows, columns)), scale_codes


def decode_fp8_rows(codes: Tensor, scale_codes: Tensor) -> Tensor:
    """Engram rows: codes [R, K] and UE8M0 codes [R, K/32] (uint8) to float32 [R, K], exactly."""
    return _scaled(decode_e4m3(codes), decode_ue8m0(scale_codes), FP8_TILE)


def encode_fp8_rows(w: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [R, K] to E4M3 codes [R, K] and UE8M0 codes [R, K/32]."""
    blocks = w.to(torch.float32).unflatten(-1, (-1, FP8_TILE))  # [R, K/32, 32]
    scale_codes = _power_of_two_scale(blocks.abs().amax(dim=-1), FP8_MAX)  # [R, K/32]
    codes = encode_e4m3(blocks / decode_ue8m0(scale_codes)[..., None])  # [R, K/32, 32]
    return codes.flatten(-2), scale_codes


def decode_fp4_rows(packed: Tensor, scale_codes: Tensor) -> Tensor:
    """Routed expert weight: bytes [N, K/2] and UE8M0 codes [N, K/32] (uint8) to float32 [N, K], exactly."""
    return _scaled(decode_e2m1(unpack_e2m1(packed)), decode_ue8m0(scale_codes), MXFP4_GROUP)


def encode_fp4_rows(w: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [N, K] to packed bytes [N, K/2] and UE8M0 codes [N, K/32]."""
    groups = w.to(torch.float32).unflatten(-1, (-1, MXFP4_GROUP))  # [N, K/32, 32]
    scale_codes = _power_of_two_scale(groups.abs().amax(dim=-1), FP4_MAX)  # [N, K/32]
    codes = encode_e2m1(groups / decode_ue8m0(scale_codes)[..., None])  # [N, K/32, 32]
    return pack_e2m1(codes.flatten(-2)), scale_codes
