"""Matrix products of rows that each belong to one of many experts.

Row law: an output row depends on its input row, its expert, K and N only, never on how many rows share the expert.
It knows nothing about routing. Source: V4.1 model specification §7.
"""

from __future__ import annotations

import torch

from optimized.ops.linear_weight import LinearWeight
from optimized.ops.registry import Operation, require

GROUPED_FP4_LINEAR = Operation("grouped_fp4_linear", cuda="DeepGEMM or a TileLang kernel")
GROUPED_BF16_LINEAR = Operation("grouped_bf16_linear")


def grouped_fp4_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Row m through FP4 matrix group[m], its input quantised to FP8 blocks of 32; one rounding to bf16.

    Args:
        x: [M, K] bf16, rows sorted by group.
        group: [M] int64, ascending, each in 0 .. G - 1.
        weight: stack of G.
    Returns:
        [M, N] bf16.
    """
    _check("grouped_fp4_linear", x, group, weight, quantizes=True)
    return GROUPED_FP4_LINEAR.on(x)(x, group, weight)


def grouped_bf16_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """Row m through bf16 matrix group[m], no input quantisation; one rounding to bf16. Arguments as above."""
    _check("grouped_bf16_linear", x, group, weight, quantizes=False)
    return GROUPED_BF16_LINEAR.on(x)(x, group, weight)


def grouped_linear(x: torch.Tensor, group: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    """The grouped linear that a quantised checkpoint stores in FP4 and a plain one in bf16."""
    return grouped_fp4_linear(x, group, weight) if weight.quantizes_input else grouped_bf16_linear(x, group, weight)


def _check(op: str, x: torch.Tensor, group: torch.Tensor, weight: LinearWeight, quantizes: bool) -> None:
    law = x.dim() == 2 and x.shape[1] == weight.in_features and x.dtype == torch.bfloat16
    law = law and weight.groups > 0 and group.shape == x.shape[:1] and weight.quantizes_input == quantizes
    require(law, op, "x [M, K] bfloat16, group [M], weight [G, K, N]", x, group, weight.operand)
