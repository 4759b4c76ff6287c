"""The command line: last line, exit status, reports and replays; nothing compared is never a pass."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from equivalence import cli, ledger, registry, replays, report, runner
from equivalence.cases import Case, Options
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.registry import Check

pytestmark = pytest.mark.ci


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """A check `fake` whose cases agree, except number `bad`; replays go to a folder of the test."""
    module = ModuleType("equivalence.checks.fake")

    def cases(options: Options) -> list[Case]:
        return [Case("fake", f"case-{i}", {"number": i}) for i in range(3 if options.cases is None else options.cases)]

    def run(case: Case, options: Options) -> Findings:
        findings = Findings()
        findings.comparisons += case.params["number"] != module.empty
        if case.params["number"] == module.bad:
            findings.differ("thing", "values", "first [0]: got 1, want 2")
        return findings

    module.bad = module.empty = -1  # type: ignore[attr-defined]
    module.cases, module.run = cases, run  # type: ignore[attr-defined]
    module.shrink = lambda case, options: case  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(registry.CHECKS, "fake", Check("fake", "a check for tests", module.__name__))
    monkeypatch.setattr(cli, "run_check", partial(runner.run_check, replay_folder=tmp_path))
    return module


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The last line of standard output."""
    return capsys.readouterr().out.splitlines()[-1]


def test_agreement_ends_with_status_zero(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "fake"]) == 0
    assert last_line(capsys) == "fake: 3 cases, 0 differences"


def test_a_case_that_compares_nothing_is_a_difference(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fake.empty = 1  # type: ignore[attr-defined]
    assert cli.main(["run", "fake"]) == 1
    assert last_line(capsys) == "fake: 3 cases, 1 differences"


@pytest.mark.parametrize("path", ["/proc/x/report.json", "."])
def test_a_report_that_cannot_be_written_stops_before_the_run(
    fake: ModuleType, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    assert cli.main(["run", "fake", "--report", path]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and path in printed.err


def test_a_difference_ends_with_status_one(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fake.bad = 1  # type: ignore[attr-defined]
    assert cli.main(["run", "fake"]) == 1
    assert last_line(capsys) == "fake: 3 cases, 1 differences"


@pytest.mark.parametrize("arguments", [["--only", "nothing"], ["--only", "case-7", "--cases", "2"]])
def test_no_case_is_no_pass(fake: ModuleType, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.main(["run", "fake", *arguments]) == 1
    assert last_line(capsys) == "fake: 0 cases, 0 differences"


def test_a_case_that_raises_is_a_difference(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(case: Case, options: Options) -> Findings:
        raise ValueError("broken")

    fake.run = broken  # type: ignore[attr-defined]
    assert cli.main(["run", "fake"]) == 1
    assert last_line(capsys) == "fake: 3 cases, 3 differences"


def test_fail_fast_stops(fake: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    fake.bad = 0  # type: ignore[attr-defined]
    assert cli.main(["run", "fake", "--fail-fast"]) == 1
    assert last_line(capsys) == "fake: 1 cases, 1 differences"


def test_an_unknown_check_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "modle"]) == 2
    assert "nearest is 'model'" in capsys.readouterr().err


def test_a_backend_that_a_check_cannot_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "model", "--backend", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err
    assert cli.main(["run", "scheduler", "--backend", "cuda"]) == 2
    assert "it can on: cpu)" in capsys.readouterr().err


def test_a_backend_without_a_device_here_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert cli.main(["run", "model", "batch_invariance", "--backend", "cuda"]) == 2
    told = capsys.readouterr()
    found = f"torch {torch.__version__} sees no such device here"
    assert told.err == f"error: backend 'cuda': {found}; accepted: cpu\n"
    assert told.out == ""


@pytest.mark.parametrize(("check", "prefix"), [("model", "engine/"), ("yoco", "0")])
def test_cases_without_an_engine_are_left_out_on_another_backend(check: str, prefix: str) -> None:
    module = registry.CHECKS[check].load()
    names = [case.name for case in module.cases(Options(backend="cuda", cases=3))]
    assert len(names) == 3
    assert all(name.startswith(prefix) for name in names)


@pytest.mark.parametrize("arguments", [["run"], ["run", "model", "--cases", "0"], ["run", "model", "--sed", "1"], []])
def test_wrong_usage_ends_with_status_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_packs_is_no_pass(
    made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "packs"
    if made:
        folder.mkdir()
    monkeypatch.setenv("COUNTERPOINT_GOLDEN", str(folder))
    assert cli.main(["run", "model"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "model: 0 cases, 0 differences"
    assert str(folder) in err


def test_a_replay_runs_the_case_that_differed(
    fake: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.bad = 2  # type: ignore[attr-defined]
    cli.main(["run", "fake", "--seed", "5"])
    (path,) = tmp_path.glob("*.json")
    assert replays.read(path) == (Case("fake", "case-2", {"number": 2}), Options(seed=5))
    capsys.readouterr()
    assert cli.main(["replay", str(path)]) == 1
    assert last_line(capsys) == "fake: 1 cases, 1 differences"


def test_a_case_has_a_replay_for_each_backend_and_seed(tmp_path: Path) -> None:
    options = [Options(), Options(seed=1), Options(backend="cuda"), Options(backend="cuda", seed=1)]
    paths = [replays.write(Case("fake", "case-2", {}), one, tmp_path) for one in options]
    assert [replays.read(path)[1] for path in paths if path is not None] == options


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, "9" * 10_000, '{"format": 2}', '{"format": 1, "check": "fake"}']
)
def test_a_bad_replay_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(SetupError, match=r"bad\.json"):
        replays.read(path)
    assert cli.main(["replay", str(path)]) == 1
    assert str(path) in capsys.readouterr().err


def test_the_report_names_differences_and_how_to_see_them_again(fake: ModuleType, tmp_path: Path) -> None:
    fake.bad = 1  # type: ignore[attr-defined]
    path = tmp_path / "out" / "report.json"
    assert cli.main(["run", "fake", "--report", str(path)]) == 1
    (check,) = json.loads(path.read_text())["checks"]
    assert (check["cases"], check["differences"]) == (3, 1)
    assert check["results"][1]["differences"] == [
        {"item": "thing", "kind": "values", "detail": "first [0]: got 1, want 2"}
    ]
    text = path.with_suffix(".md").read_text()
    assert "| fake | cpu | 0 | 3 | 3 | 1 |" in text
    assert "| case-1 | thing | first [0]: got 1, want 2 | `python -m equivalence replay " in text
    assert "### case-1" in text
    assert "### case-2" not in text, "a case that only agrees is counted, not described"


def test_the_report_says_where_it_comes_from(fake: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a report.json"
    before = datetime.datetime.now(datetime.UTC)
    assert cli.main(["run", "fake", "--seed", "3", "--report", str(path)]) == 0
    top = json.loads(path.read_text())["environment"]
    date = datetime.datetime.strptime(top["date"], "%Y-%m-%d %H:%M UTC").replace(tzinfo=datetime.UTC)
    assert datetime.timedelta(minutes=-1) < date - before < datetime.timedelta(minutes=1)
    asked = ["git", "rev-parse", "HEAD"]
    head = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()
    assert head.startswith(top["commit"].removesuffix("+changes")) if head else top["commit"] == "unknown"
    assert top["command"] == f"python -m equivalence run fake --seed 3 --report '{path}'"
    assert top["processor"] and top["torch"] == torch.__version__
    lines = path.with_suffix(".md").read_text().splitlines()
    assert lines[:2] == ["# Equivalence report", ""]
    assert lines[2 : 2 + len(top)] == [f"- {name}: {value}" for name, value in top.items()]


def test_the_list_has_straight_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(registry.CHECKS)
    for line, check in zip(lines, registry.CHECKS.values(), strict=True):
        assert line.index(f" {check.summary} [") == max(map(len, registry.CHECKS))


def test_the_report_counts_cases_of_a_kind_together(tmp_path: Path) -> None:
    outcome = runner.CheckResult("fake", Options())
    for number, kind in enumerate(("a", "b", "a")):
        findings = Findings(comparisons=2)
        outcome.results.append(runner.CaseResult(Case("fake", f"{number:05d}-{kind}"), findings, 0.5 + number))
    text = report.write([outcome], tmp_path / "report.json", {}).read_text()
    assert "| a | 2 | 4 | 0 | 0 | 0 | 1.50 | 2.5 |" in text
    assert "| b | 1 | 2 | 0 | 0 | 0 | 1.50 | 1.5 |" in text


@pytest.mark.parametrize(
    ("command", "accepted"),
    [
        ("run", {"--backend", "--cases", "--seed", "--report", "--only", "--jobs", "--fail-fast"}),
        ("mutations", {"--backend", "--only"}),
        ("replay", set()),
    ],
)
def test_the_options_of_a_command_are_these(
    command: str, accepted: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    words = capsys.readouterr().out.split()
    options = {word.strip("[],") for word in words if word.strip("[],").startswith("--")}
    assert options == {"--help", *accepted}


def test_list_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(registry.CHECKS)


def test_committed_replays_pass() -> None:
    command = ["git", "ls-files", "-z", "*.json"]
    listed = subprocess.run(command, cwd=replays.FOLDER, capture_output=True, text=True, check=False)
    found = (
        listed.stdout.split("\0") if listed.returncode == 0 else [path.name for path in replays.FOLDER.glob("*.json")]
    )
    names = [name for name in found if name]
    assert names
    for name in names:
        assert cli.main(["replay", str(replays.FOLDER / name)]) == 0, name


def test_a_known_bad_case_must_stay_bad(
    fake: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger.settle, "__defaults__", ({("fake", "case-1"): "a reason"},))
    fake.bad = 1  # type: ignore[attr-defined]
    assert cli.main(["run", "fake"]) == 0
    assert "differs as known (a reason)" in capsys.readouterr().out
    fake.bad = -1  # type: ignore[attr-defined]
    assert cli.main(["run", "fake"]) == 1
    assert last_line(capsys) == "fake: 3 cases, 1 differences"
