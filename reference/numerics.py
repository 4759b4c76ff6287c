"""How the reference rounds: one object that every sub-step asks, and that knows nothing about the model.

Between two named rounding boundaries (a bf16, fp8 or fp4 value) everything is carried in ``compute_dtype``. With the
default, float64, the order of a sum no longer shows in the rounded result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference import formats

_BF16_DROPPED_BITS = 52 - 7  # float64 keeps 52 fraction bits, bfloat16 keeps 7
_BF16_TINY = 2.0**-126  # smallest normal bfloat16
_BF16_QUANTUM = 2.0**-133  # spacing of the bfloat16 values below it


def round_to_bf16(x: Tensor) -> Tensor:
    """Round to the nearest bfloat16, ties to even, in one step; the dtype of ``x`` is kept.

    torch converts float64 to bfloat16 through float32, which rounds twice. Here float64 is rounded once.

    Args:
        x: any shape, float64 or float32. Finite values above the bfloat16 range become infinite.
    """
    if x.dtype != torch.float64:
        return x.to(torch.bfloat16).to(x.dtype)
    bits = x.view(torch.int64)
    half = (1 << (_BF16_DROPPED_BITS - 1)) - 1
    odd = (bits >> _BF16_DROPPED_BITS).bitwise_and_(1)
    rounded = odd.add_(bits).add_(half).bitwise_and_(-1 << _BF16_DROPPED_BITS).view(torch.float64)
    normal = rounded.to(torch.bfloat16).to(torch.float64)  # what is above the range becomes infinite
    subnormal = (x / _BF16_QUANTUM).round_().mul_(_BF16_QUANTUM)
    return torch.where(x.abs() < _BF16_TINY, subnormal, normal)


class _StraightThrough(torch.autograd.Function):
    """Value of the second argument, gradient of the first."""

    @staticmethod
    def forward(ctx: object, x: Tensor, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass(frozen=True)
class Numerics:
    """The switches of the reference's arithmetic.

    round_bf16: round to bfloat16 wherever the model specification names a bf16 value.
    quantize_activations: FP8 quantise-dequantise of the inputs of quantised linears (§5.1 i); without effect on a
        checkpoint whose weights are not quantised.
    quantize_caches: quantise-dequantise of window KV, compressed KV, index queries and index keys (§5).
    compute_dtype: float64 (exact between boundaries) or float32 (training).
    straight_through: rounding and quantisation pass gradients through unchanged.
    static_shapes: run every expert on every row, so that no tensor's shape depends on data (CUDA graphs); same values.
    """

    round_bf16: bool = True
    quantize_activations: bool = True
    quantize_caches: bool = True
    compute_dtype: torch.dtype = torch.float64
    straight_through: bool = False
    static_shapes: bool = False

    def _pass_through(self, x: Tensor, y: Tensor) -> Tensor:
        return y + (x - x.detach()) if self.straight_through and x.requires_grad else y  # adds an exact zero

    def bf16(self, x: Tensor) -> Tensor:
        """A named bf16 boundary; shape and dtype of ``x`` are kept."""
        return self._pass_through(x, round_to_bf16(x.detach())) if self.round_bf16 else x

    def activation(self, x: Tensor) -> Tensor:
        """Input of a quantised linear [..., K]: FP8 blocks of 32 along K with power-of-two scales (§5.1)."""
        return self._pass_through(x, formats.fake_fp8(x.detach())) if self.quantize_activations else x

    def window_kv(self, x: Tensor) -> Tensor:
        """Window and draft KV [..., d] as stored: FP8 blocks of 32 (§5.1 ii, iii)."""
        return self._pass_through(x, formats.fake_fp8(x.detach())) if self.quantize_caches else x

    def compressed_kv(self, x: Tensor) -> Tensor:
        """Compressed KV [..., d] as stored: E2M1 groups of 16 with E4M3 scales (§5.2)."""
        return self._pass_through(x, formats.fake_nvfp4(x.detach())) if self.quantize_caches else x

    def index_vector(self, x: Tensor) -> Tensor:
        """Index queries and keys [..., d_index]: E2M1 groups of 32 with power-of-two scales (§5.2)."""
        return self._pass_through(x, formats.fake_mxfp4(x.detach())) if self.quantize_caches else x


#: Every switch off: plain float arithmetic without any rounding boundary (the ``fp32_noq`` golden packs).
UNQUANTIZED = Numerics(round_bf16=False, quantize_activations=False, quantize_caches=False)
