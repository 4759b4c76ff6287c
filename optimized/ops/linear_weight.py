"""A matrix as a backend's matmul wants it, made once at load time from the released bytes.

It knows the released weight formats; it knows nothing about layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from optimized.ops.registry import Operation, require

PREPARE_FP8 = Operation("prepare_fp8_weight", cuda="DeepGEMM or a TileLang kernel")
PREPARE_FP4 = Operation("prepare_fp4_weight", cuda="DeepGEMM or a TileLang kernel")
PREPARE_DENSE = Operation("prepare_dense_weight")


@dataclass(frozen=True)
class LinearWeight:
    """One matrix, or a stack of G matrices (experts, output groups).

    in_features: K. out_features: N.
    groups: G, or 0 for a single matrix.
    quantizes_input: the matmul's input is quantised to FP8 blocks of 32 along K first (FP8 and FP4 weights).
    operand: what the backend's matmul reads; on the CPU float64 [K, N] or [G, K, N], dequantised once.
    """

    in_features: int
    out_features: int
    groups: int
    quantizes_input: bool
    operand: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes that the operand occupies."""
        return self.operand.numel() * self.operand.element_size()


def prepare_fp8_weight(codes: torch.Tensor, scales: torch.Tensor) -> LinearWeight:
    """E4M3 codes with one UE8M0 scale a 32x32 tile.

    Args:
        codes: [N, K] or [G, N, K] uint8. scales: [.., ceil(N/32), ceil(K/32)] uint8.
    """
    tiles = [-(-size // 32) for size in codes.shape[-2:]]
    require(list(scales.shape[-2:]) == tiles, "prepare_fp8_weight", "[N, K] and [N/32, K/32]", codes, scales)
    return PREPARE_FP8.on(codes)(codes, scales)


def prepare_fp4_weight(packed: torch.Tensor, scales: torch.Tensor) -> LinearWeight:
    """E2M1 codes, two a byte along K (even column in the low nibble), with one UE8M0 scale a row per 32 columns.

    Args:
        packed: [N, K/2] or [G, N, K/2] uint8. scales: [.., N, K/32] uint8.
    """
    law = packed.shape[:-1] == scales.shape[:-1] and packed.shape[-1] == 16 * scales.shape[-1]
    require(law, "prepare_fp4_weight", "[N, K/2] and [N, K/32]", packed, scales)
    return PREPARE_FP4.on(packed)(packed, scales)


def prepare_dense_weight(values: torch.Tensor) -> LinearWeight:
    """A weight that the released model keeps in bf16 or fp32.

    Args:
        values: [N, K] or [G, N, K] bfloat16 or float32.
    """
    require(values.dim() in (2, 3), "prepare_dense_weight", "[N, K] or [G, N, K]", values)
    return PREPARE_DENSE.on(values)(values)
