"""A comparison looks at shape, then masks, then values, names the first coordinate that is out, and hides nothing."""

from __future__ import annotations

import math

import pytest
import torch

from equivalence.compare import bf16_codes, compare
from equivalence.findings import Findings
from equivalence.tolerances import TABLE, Measure, Tolerance

pytestmark = pytest.mark.ci

BITS = Tolerance("bits", Measure.BITS, 0.0, "")
STEPS = Tolerance("steps", Measure.BF16_STEPS, 1, "", share=0.9)


def floats(*values: float) -> torch.Tensor:
    """A float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


def test_another_shape_never_passes() -> None:
    assert not compare(torch.zeros(2, 3), torch.zeros(3, 2), BITS).passed
    assert "(2, 3)" in compare(torch.zeros(2, 3), torch.zeros(3, 2), BITS).first


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_masks_come_before_values(odd: float) -> None:
    loose = Tolerance("loose", Measure.ABSOLUTE, 1e9, "")
    found = compare(floats(1.0, 2.0), floats(1.0, odd), loose)
    assert not found.passed
    assert found.first.startswith({math.nan: "NaN", math.inf: "+inf"}.get(odd, "-inf") if odd == odd else "NaN")
    assert compare(floats(1.0, odd), floats(1.0, odd), loose).passed


def test_the_first_coordinate_is_named() -> None:
    want = torch.zeros(3, 4)
    got = want.clone()
    got[1, 2] = got[2, 0] = 5.0
    found = compare(got, want, BITS)
    assert (found.beyond, found.first) == (2, "[1, 2]: got 5, want 0")


def test_zero_has_one_place_among_bf16_numbers() -> None:
    smallest = 2.0**-133
    assert bf16_codes(floats(-smallest, -0.0, 0.0, smallest)).tolist() == [-1, 0, 0, 1]
    assert bf16_codes(floats(1.0)).item() + 1 == bf16_codes(floats(1.0 + 2**-7)).item()


def test_steps_are_counted_across_a_power_of_two() -> None:
    below, above = 1.0 - 2**-8, 1.0 + 2**-7
    assert compare(floats(below), floats(1.0), STEPS).beyond == 0
    assert compare(floats(below), floats(above), STEPS).beyond == 1


def test_relative_measure_wants_zero_for_zero() -> None:
    row = Tolerance("relative", Measure.RELATIVE, 1e-9, "")
    assert compare(floats(0.0, 1.0), floats(0.0, 1.0 + 1e-10), row).passed
    assert not compare(floats(1e-30), floats(0.0), row).passed


def test_rms_of_a_zero_tensor_is_no_excuse() -> None:
    row = Tolerance("rms", Measure.RELATIVE_RMS, 1e-2, "")
    assert compare(torch.zeros(4), torch.zeros(4), row).passed
    assert not compare(torch.full((4,), 1e-3), torch.zeros(4), row).passed


def test_a_share_is_pooled_over_all_tensors_of_a_sub_step() -> None:
    want = torch.ones(1000)
    got = want.clone()
    got[:2] = 2.0  # 2 of 1000 here, 2 of 3000 in all: one row of the table asks for 99.9 %
    findings = Findings()
    for item, tensor in (("a", got), ("b", want), ("c", want)):
        findings.values("step", item, tensor, want, "model.official.values")
    assert findings.close().differences == []
    alone = Findings()
    alone.values("step", "a", got, want, "model.official.values")
    assert [difference.item for difference in alone.close().differences] == ["step"]


@pytest.mark.parametrize("size", [1e150, 1e200, 1e300])
@pytest.mark.parametrize("name", sorted(name for name, row in TABLE.items() if row.measure is not Measure.BITS))
def test_no_row_accepts_zeros_for_values_whose_squares_overflow(name: str, size: float) -> None:
    findings = Findings()
    for item in "abc":
        findings.values(
            "step", item, torch.zeros(8, dtype=torch.float64), torch.full((8,), size, dtype=torch.float64), name
        )
    assert findings.close().differences


def test_every_row_of_the_table_has_a_reason() -> None:
    assert all(row.reason and row.name == name for name, row in TABLE.items())


def test_closing_twice_counts_once() -> None:
    findings = Findings()
    findings.values("step", "a", torch.full((10,), 2.0), torch.ones(10), "model.official.values")
    assert len(findings.close().close().differences) == 1
