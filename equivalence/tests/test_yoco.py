"""Bounded replay is the same in both modes and in the reference, and a row that strays is noticed."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from equivalence.cases import Options
from equivalence.checks import yoco
from equivalence.checks.yoco import cost, metadata
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators import checkpoints

pytestmark = pytest.mark.ci

NUMBERS = (0, 1, 4, 6, 7, 18)


@pytest.mark.parametrize("number", NUMBERS)
def test_both_modes_and_the_reference_agree(number: int) -> None:
    findings = yoco.run(yoco.one_case(0, number), Options())
    assert findings.differences == []
    assert findings.comparisons > 1
    assert findings.not_compared == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(24, 32))
def test_both_modes_agree_on_the_bundled_model(number: int) -> None:
    assert yoco.run(yoco.one_case(0, number), Options()).differences == []


@pytest.mark.slow
def test_figures_are_printed() -> None:
    findings = cost.run(checkpoints.bundled())
    assert findings.differences == []
    assert [figure.split(":")[0] for figure in findings.figures] == [
        "keep 70 of 640, window 64",
        "keep 140 of 640, window 64",
        "keep 256 of 640, window 64",
        "keep 512 of 640, window 64",
    ]
    with pytest.raises(SetupError, match="must have"):
        cost.run(checkpoints.bundled(), "short")


def test_a_case_is_whole_in_its_parameters() -> None:
    for case in yoco.cases(Options(cases=8)):
        assert json.loads(json.dumps(case.params)) == case.params


def test_divergence_of_a_distribution_from_itself_is_nothing() -> None:
    p = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    assert cost.kl(p, p).tolist() == [0.0, 0.0]
    q = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    assert cost.kl(p, q)[0] == 0.0
    assert cost.kl(p, q)[1] > 0.1


@pytest.mark.parametrize("name", metadata.FIELDS)
def test_an_integer_that_differs_is_noticed(name: str) -> None:
    kept = {field: torch.tensor([3, 4]) for field in metadata.FIELDS}
    row = metadata.LayerRows(2, kept, 0, torch.tensor([4]))
    other = dataclasses.replace(row, kept={**kept, name: torch.tensor([3, 5])})
    findings = Findings()
    metadata.compare(findings, metadata.Recorder([row]), metadata.Recorder([row]))
    assert findings.differences == []
    metadata.compare(findings, metadata.Recorder([other]), metadata.Recorder([row]))
    assert len(findings.differences) == 1


def test_a_row_that_strays_and_a_layer_that_is_missing_are_noticed() -> None:
    row = metadata.LayerRows(2, {field: torch.tensor([3]) for field in metadata.FIELDS}, 0, torch.tensor([3]))
    findings = Findings()
    metadata.compare(findings, metadata.Recorder([dataclasses.replace(row, strays=1)]), metadata.Recorder([row]))
    metadata.compare(findings, metadata.Recorder([]), metadata.Recorder([row]))
    assert len(findings.differences) == 2
