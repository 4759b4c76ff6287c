"""A figure is what it says: both voices are measured, the ratio is theirs, its origin stands beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import engine
from benchmarks.engine import Figure, Round, Workload
from reference.tests.small_checkpoint import CONFIG
from reference.tiny.build import random_checkpoint

pytestmark = pytest.mark.ci

SMALL = ["--batch", "1,3", "--context", "8", "--tokens", "4", "--reference-tokens", "2", "--rounds", "1"]


def test_every_system_is_measured_and_the_ratio_is_that_of_its_figures(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random_checkpoint(CONFIG, seed, tmp_path / "model")
    report = tmp_path / "report.json"
    assert engine.main(["--model", str(tmp_path / "model"), *SMALL, "--report", str(report)]) == 0
    record = json.loads(report.read_text())
    assert set(record["origin"]) == {"date", "commit", "hardware", "software", "command"}
    systems = {figure["system"] for figure in record["figures"]}
    wanted = {f"engine, async {lag}, replay {replay}" for lag in ("on", "off") for replay in ("off", "compact")}
    assert systems >= {*wanted, "reference"}
    assert {figure["workload"]["batch"] for figure in record["figures"]} == {1, 3}
    for figure in record["figures"]:
        assert min(figure["prefill"], figure["overall"]) > 0
        assert (figure["host_ms"] is not None) == ("async on" in figure["system"])
    shown = capsys.readouterr().out
    assert "hardware: " in shown
    assert "target" not in shown  # batch 8 at context 512 was not measured
    first, reference = record["figures"][0], next(one for one in record["figures"] if one["system"] == "reference")
    assert f"at batch 1: {first['overall'] / reference['overall']:.1f}x" in shown


def test_rates_are_those_of_the_two_calls() -> None:
    made = engine._round([[1, 2, 3, 4]] * 2, 5, one=2.0, whole=6.0)
    assert made == engine.Round(prefill=8 / 2, decode=2 * 4 / 4, overall=2 * 5 / 6)


@pytest.mark.parametrize(("ratio", "status"), [(19.9, 1), (20.0, 0)])
def test_a_missed_target_fails_the_run(ratio: float, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Workload(8, 512, 64)
    figures = [Figure.of(work, name, [Round(1.0, 1.0, rate)]) for name, rate in (("a", ratio), ("reference", 1.0))]
    monkeypatch.setattr(engine, "systems", lambda options, config: [])
    monkeypatch.setattr(engine, "measure", lambda *arguments: figures)
    assert engine.main(["--batch", "8"]) == status


def test_prompts_are_the_seeds_and_hold_no_special_token() -> None:
    prompts = engine.random_prompts(Workload(3, 100, 1), 40, seed=5)
    assert prompts == engine.random_prompts(Workload(3, 100, 1), 40, seed=5)
    assert min(map(min, prompts)) >= 3
    assert max(map(max, prompts)) < 40
