"""The table of device steps holds both kinds of step, and captured ones cost the host less."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import device_steps

pytestmark = pytest.mark.gpu


def test_both_kinds_of_step_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    options = ["--batch", "1,3", "--context", "16", "--steps", "4", "--report", str(report)]
    assert device_steps.main(options) == 0
    record = json.loads(report.read_text())
    rows = {(one["batch"], one["mode"]): one for one in record["figures"]}
    assert set(rows) == {(1, "eager"), (1, "captured"), (3, "eager"), (3, "captured")}
    for batch in (1, 3):
        eager, captured = rows[batch, "eager"], rows[batch, "captured"]
        assert eager["operations"] > 100
        assert captured["host_ms"] < eager["host_ms"]
    assert "ceilings: copy " in capsys.readouterr().out
