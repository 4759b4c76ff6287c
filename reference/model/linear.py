"""The three kinds of linear layer; knows no layer names. Source: V4.1 model specification §2.1."""

from __future__ import annotations

from torch import Tensor

from reference.numerics import Numerics


def quantized_linear(x: Tensor, weight: Tensor, quantized: bool, numerics: Numerics) -> Tensor:
    """FP8 and FP4 linears: quantise the activation in blocks of 32, multiply, round once to bf16.

    Args:
        x: [..., K] bf16 values; weight: [N, K] dequantised values; quantized: whether the checkpoint's weights are.
    Returns: [..., N] bf16 values.
    """
    operand = numerics.activation(x) if quantized else x  # [..., K]
    return numerics.bf16(operand @ weight.T)  # [..., N]


def bf16_linear(x: Tensor, weight: Tensor, numerics: Numerics) -> Tensor:
    """Plain matrix product [..., K] · [N, K]ᵀ, no activation quantisation, rounded once to bf16: [..., N]."""
    return numerics.bf16(x @ weight.T)  # [..., N]


def fp32_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Matrix product [..., K] · [N, K]ᵀ whose result is not rounded: [..., N]."""
    return x @ weight.T  # [..., N]
