"""Every check whose engine runs on a CUDA device finds no difference there, in a few cases of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from equivalence import registry
from equivalence.cases import Options
from equivalence.runner import run_check

CASES = {"model": 5, "batch_invariance": 12, "yoco": 8, "deterministic_sampling": 32, "structured_output": 12}


@pytest.mark.ci
def test_these_are_all_checks_with_an_engine() -> None:
    assert set(CASES) == {check.name for check in registry.CHECKS.values() if "cuda" in check.backends}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_check_finds_no_difference(name: str, tmp_path: Path) -> None:
    if name == "structured_output":
        pytest.importorskip("xgrammar")
        pytest.importorskip("jsonschema")
    options = Options("cuda", CASES[name], seed=1, only=("0", "engine/"))
    outcome = run_check(registry.CHECKS[name], options, replay_folder=tmp_path)
    assert [(one.case.name, one.findings.differences[:2]) for one in outcome.results if one.findings.differences] == []
    assert outcome.setup_error == ""
    assert outcome.cases == CASES[name]
