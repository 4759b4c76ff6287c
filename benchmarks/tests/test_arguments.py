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
    "--nextn": ["-1", "x"],
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--max-model-len 64", "argument --max-model-len: 64 is not at least 293"),
        ("--max-model-len 8192,292", "argument --max-model-len: 292 is not at least 293"),
        ("--max-model-len 293 --nextn 1", "argument --max-model-len: 293 is not at least 294"),
        ("--steps 496", "argument --steps, --reference-steps: 513 tokens a request in all, not at most 512"),
        ("--reference-steps 496", "argument --steps, --reference-steps: 513 tokens"),
        ("--nextn 16", "argument --nextn: 16 is not below the page's size, 16"),
    ],
)
def test_requests_of_the_scheduler_benchmark_must_last(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--running", "2", "--steps", "4", "--reference-steps", "1"]
    with pytest.raises(SystemExit) as stopped:
        scheduler.parse([*small, *arguments.split()])
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
    assert scheduler.parse([*small, "--max-model-len", "293"]).max_model_len == [293]


@pytest.mark.parametrize(
    ("benchmark", "arguments", "told"),
    [
        (device_steps, "", "device: got 'cuda', but torch"),
        (engine, "--device cuda", "device: got 'cuda', but torch"),
        (speculation, "--device cuda", "device: got 'cuda', but torch"),
        (speculation, "--nextn 9", "nextn: got 9; accepted: 0 to 5"),
        (engine, "--model /nowhere --reference-tokens 0", "/nowhere/config.json: cannot be read"),
        (engine, "--context 9000 --batch 1 --reference-tokens 0", "got 9000 tokens; accepted: at most 8191"),
    ],
)
def test_what_the_engine_refuses_is_a_line(
    benchmark: Any, arguments: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert benchmark.main(arguments.split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert told in line
