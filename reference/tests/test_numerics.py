"""Rounding to bfloat16: once, to nearest, ties to even, over the whole float64 range."""

from __future__ import annotations

import pytest
import torch

from reference.numerics import Numerics, round_to_bf16

pytestmark = pytest.mark.ci


def bf16_values() -> torch.Tensor:
    """Every finite non-negative bfloat16, ascending, float64."""
    return torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(torch.float64)


def test_every_bfloat16_is_kept():
    values = bf16_values()
    assert torch.equal(round_to_bf16(values), values)
    assert torch.equal(round_to_bf16(-values), -values)


def test_midpoints_go_to_the_even_neighbour_and_their_neighbours_to_the_nearer_one():
    values = bf16_values()
    low, high = values[:-1], values[1:]
    middle = (low + high) / 2
    even = torch.where(torch.arange(len(low)) % 2 == 0, low, high)
    assert torch.equal(round_to_bf16(middle), even)
    assert torch.equal(round_to_bf16(torch.nextafter(middle, low)), low)
    assert torch.equal(round_to_bf16(torch.nextafter(middle, high)), high)


def test_a_value_that_float32_would_move_onto_a_tie_is_rounded_once():
    x = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40], dtype=torch.float64)
    assert round_to_bf16(x).tolist() == [1 + 2.0**-7, 1.0]


def test_overflow_infinities_and_nan():
    largest = torch.finfo(torch.bfloat16).max
    x = torch.tensor([largest * 1.01, -largest * 1.01, torch.inf, -torch.inf, torch.nan, 1e300], dtype=torch.float64)
    rounded = round_to_bf16(x)
    assert rounded[[0, 2, 5]].isinf().all() and (rounded[[1, 3]] == -torch.inf).all() and rounded[4].isnan()


def test_straight_through_rounds_forward_and_passes_gradients_unchanged():
    numerics = Numerics(compute_dtype=torch.float32, straight_through=True)
    for boundary in (
        numerics.bf16,
        numerics.activation,
        numerics.window_kv,
        numerics.compressed_kv,
        numerics.index_vector,
    ):
        x = torch.linspace(-3, 3, 64, requires_grad=True)
        y = boundary(x)
        y.sum().backward()
        assert x.grad is not None
        assert not torch.equal(y, x) and torch.equal(x.grad, torch.ones(64))
        plain = getattr(Numerics(compute_dtype=torch.float32), boundary.__name__)(x.detach())
        assert torch.equal(y.detach(), plain)
