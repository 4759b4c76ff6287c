"""The number formats, over every code, against values worked out from the definitions in exact arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch

from reference import formats

pytestmark = pytest.mark.ci

ALL_BYTES = torch.arange(256, dtype=torch.uint8)
E2M1_GRID = [
    Fraction(0),
    Fraction(1, 2),
    Fraction(1),
    Fraction(3, 2),
    Fraction(2),
    Fraction(3),
    Fraction(4),
    Fraction(6),
]


def e4m3_value(code: int) -> Fraction | None:
    """E4M3FN by definition: 4 exponent bits (bias 7), 3 fraction bits, one NaN per sign, no infinity."""
    sign, exponent, fraction = (-1) ** (code >> 7), (code >> 3) & 15, code & 7
    if exponent == 15 and fraction == 7:
        return None
    if exponent == 0:
        return sign * Fraction(fraction, 8) * Fraction(1, 64)
    return sign * (1 + Fraction(fraction, 8)) * Fraction(2) ** (exponent - 7)


E4M3_GRID = [value for code in range(127) if (value := e4m3_value(code)) is not None]


def nearest_even(x: Fraction, grid: list[Fraction]) -> int:
    """Index of the grid value nearest to x >= 0; a tie goes to the even index; beyond the end saturates."""
    distances = [abs(x - value) for value in grid]
    best = min(distances)
    tied = [i for i, distance in enumerate(distances) if distance == best]
    return tied[0] if len(tied) == 1 else next(i for i in tied if i % 2 == 0)


def probes(grid: list[Fraction]) -> list[float]:
    """Every grid value, every midpoint, and the float32 values next to each midpoint."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(grid)]
    points = [float(value) for value in grid + middles]
    for middle in middles:
        near = torch.tensor(float(middle), dtype=torch.float32)
        points += [torch.nextafter(near, near.new_tensor(to)).item() for to in (-torch.inf, torch.inf)]
    return points


def test_every_e4m3_code_decodes_to_its_definition():
    decoded = formats.decode_e4m3(ALL_BYTES)
    for code in range(256):
        expected = e4m3_value(code)
        assert (expected is None and torch.isnan(decoded[code])) or Fraction(decoded[code].item()) == expected, code


def test_every_e2m1_code_decodes_to_its_definition():
    decoded = formats.decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert [Fraction(v) for v in decoded.tolist()] == E2M1_GRID + [-v for v in E2M1_GRID]
    assert not torch.signbit(decoded[8])  # the released table maps code 8 to +0.0


def test_every_ue8m0_code_decodes_to_a_power_of_two():
    decoded = formats.decode_ue8m0(ALL_BYTES)
    assert [Fraction(v) for v in decoded[:255].tolist()] == [Fraction(2) ** (code - 127) for code in range(255)]
    assert torch.isnan(decoded[255])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("encode", "grid", "sign_bit"), [("e4m3", E4M3_GRID, 128), ("e2m1", E2M1_GRID, 8)])
def test_encoding_rounds_to_nearest_with_ties_to_the_even_code(encode, grid, sign_bit, sign):
    points = [*probes(grid), float(grid[-1]) * 1.5, 1e30]
    codes = getattr(formats, f"encode_{encode}")(sign * torch.tensor(points, dtype=torch.float32))
    for point, code in zip(points, codes.tolist(), strict=True):
        assert code == nearest_even(Fraction(point), grid) + (sign_bit if sign < 0 else 0), point


@pytest.mark.parametrize("fraction", [0, 1, 1 << 22, (1 << 23) - 1])
def test_scale_is_the_smallest_power_of_two_not_below_every_exponent(fraction):
    exponents = torch.arange(1, 254, dtype=torch.int32)
    t = ((exponents << 23) | fraction).view(torch.float32)
    scale = formats.decode_ue8m0(formats.encode_ue8m0_ceil(t))
    assert bool((scale >= t).all()) and bool((scale / 2 < t).all())


def test_packing_puts_the_even_column_in_the_low_nibble():
    assert formats.decode_e2m1(formats.unpack_e2m1(torch.tensor([0xA0], dtype=torch.uint8))).tolist() == [0.0, -1.0]
    assert torch.equal(formats.pack_e2m1(formats.unpack_e2m1(ALL_BYTES)), ALL_BYTES)


def test_released_fp8_bytes_decode_to_the_published_values():
    codes = torch.tensor([[0xD8, 0x71, 0xF2, 0x79, 0x70, 0x69, 0xF0, 0xE5]], dtype=torch.uint8)
    values = formats.decode_fp8_tiles(codes, torch.tensor([[0x73]], dtype=torch.uint8))
    expected = [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125, -0.0126953125]
    assert values.tolist() == [expected]


def test_released_fp4_bytes_decode_to_the_published_values():
    packed = torch.tensor([[0xA0, 0xA8, 0xEC, 0x4A, 0xAD, 0xAF, 0x42, 0xAA] + [0] * 8], dtype=torch.uint8)
    values = formats.decode_fp4_rows(packed, torch.tensor([[0x78]], dtype=torch.uint8))[0, :16]
    u = 0.0078125
    expected = [0, -u, 0, -u, -2 * u, -4 * u, -u, 2 * u, -3 * u, -u, -6 * u, -u, u, 2 * u, -u, -u]
    assert values.tolist() == expected


@pytest.mark.parametrize("shape", [(32, 32), (64, 96), (33, 40), (1, 7)])
def test_tiles_scale_their_own_32_by_32_block(shape):
    generator = torch.Generator().manual_seed(len("tiles") + sum(shape))
    w = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-8, 8, shape, generator=generator).float())
    codes, scales = formats.encode_fp8_tiles(w)
    assert scales.shape == (-(-shape[0] // 32), -(-shape[1] // 32))
    decoded = formats.decode_fp8_tiles(codes, scales)
    for i in range(shape[0]):
        for j in range(shape[1]):
            scale = 2.0 ** (scales[i // 32, j // 32].item() - 127)
            assert decoded[i, j].item() == formats.decode_e4m3(codes[i, j][None]).item() * scale


@pytest.mark.parametrize(
    ("encode", "decode"),
    [
        (formats.encode_fp8_tiles, formats.decode_fp8_tiles),
        (formats.encode_fp8_rows, formats.decode_fp8_rows),
        (formats.encode_fp4_rows, formats.decode_fp4_rows),
    ],
)
def test_encoding_a_decoded_weight_changes_no_value(encode, decode):
    generator = torch.Generator().manual_seed(7)
    values = decode(*encode(torch.randn(64, 128, generator=generator)))
    assert torch.equal(decode(*encode(values)), values)
    assert torch.equal(decode(*encode(torch.zeros(32, 64))), torch.zeros(32, 64))


@pytest.mark.parametrize(
    ("quantise", "group", "largest"),
    [(formats.fake_fp8, 32, 448.0), (formats.fake_mxfp4, 32, 6.0), (formats.fake_nvfp4, 16, 6.0)],
)
def test_quantisers_work_block_by_block_and_are_idempotent_on_power_of_two_scales(quantise, group, largest):
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(5, 4 * group, generator=generator).to(torch.bfloat16).to(torch.float64)
    whole = quantise(x)
    assert whole.dtype == torch.float64
    parts = torch.cat([quantise(block) for block in x.split(group, dim=-1)], dim=-1)
    assert torch.equal(whole, parts)
    assert torch.equal(whole, whole.to(torch.bfloat16).to(torch.float64))  # every value is exact in bfloat16
    if quantise is not formats.fake_nvfp4:
        assert torch.equal(quantise(whole), whole)
    assert torch.equal(quantise(torch.zeros(group)), torch.zeros(group))


@pytest.mark.parametrize(
    ("quantise", "group", "floor"),
    [(formats.fake_fp8, 32, 1e-4 / 448), (formats.fake_mxfp4, 32, 2.0**-126), (formats.fake_nvfp4, 16, 2.0**-9)],
)
def test_scale_has_the_floor_of_its_format(quantise, group, floor):
    scale = 2.0**-22 if quantise is formats.fake_fp8 else floor
    x = torch.zeros(group)
    x[0] = scale * 0.5  # half of the smallest scale: representable in every format
    assert quantise(x)[0].item() == x[0].item()
    x[0] = scale / 1024
    assert quantise(x)[0].item() == 0.0


def test_compressed_kv_scale_is_a_true_division_that_saturates():
    x = torch.zeros(16)
    x[0] = 6 * 448.0 * 4
    assert formats.fake_nvfp4(x)[0].item() == 6 * 448.0
    x[0] = 7.0  # 7/6 = 1.1667 rounds to 1.125 in E4M3, 7/1.125 = 6.2 saturates
    assert formats.fake_nvfp4(x)[0].item() == 6.75
