"""Bad options of every benchmark are told at once, by name, and nothing is measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import device_steps, engine, scheduler, speculation

pytestmark = pytest.mark.ci

BAD = {
    "--batch": ["0", "1,x", "", "1,,2", "-1"],
    "--running": ["0", "1,x"],
    "--max-model-len": ["0"],
    "--context": ["0", "x"],
    "--tokens": ["1", "-1"],
    "--rounds": ["0"],
    "--steps": ["0"],
    "--reference-steps": ["0"],
    "--reference-tokens": ["-1"],
    "--temperature": ["nan", "-1", "inf", "1,"],
    "--report": ["none/of/these.json", "."],
    "--text": ["none.txt", "."],
}


@pytest.mark.parametrize("benchmark", [engine, speculation, device_steps, scheduler])
def test_bad_options_are_refused_by_name(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.parse(["--help"])
    told = capsys.readouterr().out
    known = [option for option in BAD if f"{option} " in told]
    assert "--report" in known
    for option in known:
        for value in BAD[option]:
            with pytest.raises(SystemExit) as stopped:
                benchmark.parse([f"{option}={value}"])
            assert stopped.value.code == 2
            assert f"argument {option}:" in capsys.readouterr().err
