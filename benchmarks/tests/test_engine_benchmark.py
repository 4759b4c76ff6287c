"""A figure is what it says: both voices are measured, the ratio is theirs, its origin stands beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import engine
from benchmarks.engine import Figure, Workload
from reference.tests.small_checkpoint import CONFIG
from reference.tiny.build import random_checkpoint

pytestmark = pytest.mark.ci

SMALL = ["--batch", "1,3", "--context", "8", "--tokens", "4", "--reference-tokens", "1", "--rounds", "1"]


def test_both_voices_are_measured_and_the_ratio_is_theirs(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random_checkpoint(CONFIG, seed, tmp_path / "model")
    report = tmp_path / "report.json"
    assert engine.main(["--model", str(tmp_path / "model"), *SMALL, "--report", str(report)]) == 0
    record = json.loads(report.read_text())
    assert set(record["origin"]) == {"date", "commit", "hardware", "software", "command"}
    assert [figure["workload"]["batch"] for figure in record["figures"]] == [1, 3]
    for figure in record["figures"]:
        assert figure["ratio"] == figure["optimized"] / figure["reference"] > 0
    shown = capsys.readouterr().out
    assert "hardware: " in shown
    assert "target" not in shown  # batch 8 at context 512 was not measured


@pytest.mark.parametrize(("ratio", "status"), [(19.9, 1), (20.0, 0)])
def test_a_missed_target_fails_the_run(ratio: float, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure(Workload(8, 512, 64), ratio, ratio, 1.0, ratio, [ratio], [1.0])
    monkeypatch.setattr(engine, "Voices", lambda model: None)
    monkeypatch.setattr(engine, "measure", lambda *arguments: figure)
    assert engine.main(["--batch", "8"]) == status


def test_prompts_are_the_seeds_and_hold_no_special_token() -> None:
    prompts = engine.random_prompts(Workload(3, 100, 1), 40, seed=5)
    assert prompts == engine.random_prompts(Workload(3, 100, 1), 40, seed=5)
    assert min(map(min, prompts)) >= 3
    assert max(map(max, prompts)) < 40
