"""The scheduler benchmark measures what it says: all requests decode, and under pressure some are preempted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scheduler

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("pressure", [False, True])
def test_both_schedulers_do_the_same_steps(pressure: bool) -> None:
    workload = scheduler.Workload(running=32, pressure=pressure, nextn=1, max_model_len=1024)
    core, reference = scheduler.CoreDriver(workload), scheduler.ReferenceDriver(workload)
    rows, _ = scheduler.decode_steps(core, workload, 20)
    assert rows == scheduler.decode_steps(reference, workload, 20)[0]
    assert core.scheduler.num_preemptions == reference.scheduler.num_preemptions
    assert (core.scheduler.num_preemptions > 0) is pressure
    assert rows[0] > 16


def test_the_report_holds_every_figure_and_its_origin(tmp_path: Path) -> None:
    report = tmp_path / "figures.json"
    arguments = [
        "--running",
        "2,4",
        "--steps",
        "2",
        "--reference-steps",
        "1",
        "--rounds",
        "1",
        "--max-model-len",
        "2048",
    ]
    assert scheduler.main([*arguments, "--report", str(report)]) == 0
    record = json.loads(report.read_text())
    loads = [(figure["workload"]["running"], figure["workload"]["pressure"]) for figure in record["figures"]]
    assert loads == [(2, False), (2, True), (4, False), (4, True)]
    assert [figure["running"] for figure in record["budgets"]] == [2, 4]
    assert "benchmarks.scheduler" in record["origin"]["command"]
