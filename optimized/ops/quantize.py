"""Quantisers of cache entries and index queries, in the released byte formats.

All work in float32 on their bf16 input and round ties to the even code. They know nothing about where entries are kept.
Source: V4.1 model specification §5.
"""

from __future__ import annotations

import torch

from optimized.ops.registry import Operation, require

QUANTIZE_FP8 = Operation("quantize_fp8")
QUANTIZE_MXFP4 = Operation("quantize_mxfp4")
QUANTIZE_NVFP4 = Operation("quantize_nvfp4")


def quantize_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Window KV: blocks of 32, scale = the power of two at or above max(|x|, 1e-4) / 448.

    Args:
        x: [..., K] bf16.
    Returns:
        E4M3 codes [..., K] uint8, UE8M0 codes [..., K/32] uint8.
    """
    require(x.dtype == torch.bfloat16 and x.shape[-1] % 32 == 0, "quantize_fp8", "x [..., 32 n] bfloat16", x)
    return QUANTIZE_FP8.on(x)(x)


def quantize_mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index queries and keys: groups of 32, scale = the power of two at or above max(|x|, 6 * 2^-126) / 6.

    Args:
        x: [..., K] bf16.
    Returns:
        E2M1 codes packed two a byte [..., K/2] uint8 (even column low), UE8M0 codes [..., K/32] uint8.
    """
    require(x.dtype == torch.bfloat16 and x.shape[-1] % 32 == 0, "quantize_mxfp4", "x [..., 32 n] bfloat16", x)
    return QUANTIZE_MXFP4.on(x)(x)


def quantize_nvfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compressed KV: groups of 16, scale = E4M3 of max(|x|, 6 * 2^-9) / 6, saturating.

    Args:
        x: [..., K] bf16.
    Returns:
        E2M1 codes packed two a byte [..., K/2] uint8 (even column low), E4M3 codes [..., K/16] uint8.
    """
    require(x.dtype == torch.bfloat16 and x.shape[-1] % 16 == 0, "quantize_nvfp4", "x [..., 16 n] bfloat16", x)
    return QUANTIZE_NVFP4.on(x)(x)
