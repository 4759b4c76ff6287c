"""The byte formats, over every code and every bfloat16 input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from optimized.ops.portable import tables
from optimized.ops.portable.rounding import round_bf16
from optimized.ops.quantize import quantize_fp8, quantize_mxfp4, quantize_nvfp4
from optimized.ops.tests.generators import E2M1_GRID, E4M3_GRID, bf16, every_bf16, nearest_bf16, nearest_on

pytestmark = pytest.mark.ci


def blocks_with(values: torch.Tensor, largest: float, size: int) -> torch.Tensor:
    """[n, size] bf16 blocks that hold all values and, first, the magnitude that fixes the scale."""
    count = -(-len(values) // (size - 1))
    padded = torch.zeros(count * (size - 1), dtype=torch.bfloat16)
    padded[: len(values)] = values
    first = torch.full((count, 1), largest, dtype=torch.bfloat16)
    return torch.cat((first, padded.view(count, size - 1)), dim=1)


def test_every_e4m3_code_decodes_to_its_grid_value() -> None:
    values = tables.e4m3_values(torch.device("cpu"))
    assert values[:127].tolist() == E4M3_GRID
    assert values[128:255].tolist() == [-value for value in E4M3_GRID]
    assert torch.isnan(values[[127, 255]]).all()


def test_every_packed_byte_decodes_low_nibble_first() -> None:
    values = tables.e2m1_pairs(torch.device("cpu"))
    signed = E2M1_GRID + [-value for value in E2M1_GRID]
    assert values.tolist() == [[signed[byte & 15], signed[byte >> 4]] for byte in range(256)]
    assert not torch.signbit(values[0x88]).any()  # code 8 is +0


def test_released_bytes_decode_to_the_known_values() -> None:
    dense = torch.tensor([[0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5] + [0] * 24], dtype=torch.uint8)
    found = tables.dequantize_fp8(dense, torch.tensor([[0x73]], dtype=torch.uint8))[0, :8]
    expected = [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125, -0.0126953125]
    assert found.tolist() == expected
    expert = torch.tensor([[0xA0, 0xA8, 0xEC, 0x4A, 0xAD, 0xAF, 0x42, 0xAA] + [0] * 8], dtype=torch.uint8)
    found = tables.dequantize_mxfp4(expert, torch.tensor([[0x78]], dtype=torch.uint8))[0, :16]
    unit = 0.0078125
    expected = [0, -1, 0, -1, -2, -4, -1, 2, -3, -1, -6, -1, 1, 2, -1, -1]
    assert found.tolist() == [unit * value for value in expected]


def test_fp8_rounds_every_value_to_the_nearest_code() -> None:
    values = every_bf16(448.0)
    x = blocks_with(values, 448.0, 32)
    codes, scales = quantize_fp8(x)
    assert (scales == 127).all()
    found = tables.dequantize_fp8(codes, scales)[:, 1:].flatten()[: len(values)].tolist()
    assert found == nearest_on(E4M3_GRID, values.double().cpu().numpy())


def test_fp4_rounds_every_value_to_the_nearest_code() -> None:
    values = every_bf16(6.0)
    expected = nearest_on(E2M1_GRID, values.double().cpu().numpy())
    for quantize, dequantize, size in (
        (quantize_mxfp4, tables.dequantize_mxfp4, 32),
        (quantize_nvfp4, tables.dequantize_nvfp4, 16),
    ):
        found = dequantize(*quantize(blocks_with(values, 6.0, size)))[:, 1:].flatten()[: len(values)]
        assert found.tolist() == expected


@pytest.mark.parametrize(
    ("quantize", "floor", "divisor"), [(quantize_fp8, 1e-4, 448), (quantize_mxfp4, 6 * 2.0**-126, 6)]
)
def test_power_of_two_scales_are_the_smallest_that_fit(quantize, floor: float, divisor: int) -> None:
    values = every_bf16(3e38)
    x = torch.zeros(len(values), 32, dtype=torch.bfloat16)
    x[:, 5] = values
    amax = np.maximum(np.abs(values.float().cpu().numpy()), np.float32(floor))
    bound = amax * np.float32(1 / divisor)
    scale = np.exp2(quantize(x)[1][:, 0].double().cpu().numpy() - 127)
    assert (scale >= bound).all()
    assert (scale / 2 < bound).all()


def test_e4m3_scales_are_rounded_quotients() -> None:
    values = every_bf16(1e5)
    x = torch.zeros(len(values), 16, dtype=torch.bfloat16)
    x[:, 5] = values
    found = tables.look_up(tables.e4m3_values(x.device), quantize_nvfp4(x)[1][:, 0])
    amax = np.maximum(np.abs(values.float().cpu().numpy()), np.float32(6 * 2.0**-9)) / np.float32(6)
    assert found.tolist() == nearest_on(E4M3_GRID, amax.astype(np.float64))


def test_stored_values_are_exact_in_bf16(rng: np.random.Generator) -> None:
    for scale in (1e-6, 1.0, 1e4):
        x = bf16(rng, 64, 64, scale=scale)
        for values in (
            tables.dequantize_fp8(*quantize_fp8(x)),
            tables.dequantize_mxfp4(*quantize_mxfp4(x)),
            tables.dequantize_nvfp4(*quantize_nvfp4(x)),
        ):
            assert torch.equal(values, values.to(torch.bfloat16).double())


@pytest.mark.parametrize("count", [1000, 40000])  # below and above the size at which the method changes
def test_bf16_is_rounded_once(rng: np.random.Generator, count: int) -> None:
    exact = bf16(rng, count).double()
    neighbour = torch.nextafter(exact.to(torch.bfloat16), torch.tensor(torch.inf, dtype=torch.bfloat16)).double()
    middle = (exact + neighbour) / 2
    nudge = torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], size=count)) * middle.abs() * 2.0**-40
    x = torch.where(
        torch.from_numpy(rng.random(count) < 0.5), middle + nudge, torch.from_numpy(rng.standard_normal(count))
    )
    assert round_bf16(x).tolist() == [nearest_bf16(value) for value in x.tolist()]
