"""Cases on several processes: the same results in the same order, and no process that dies or waits is left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from equivalence import cli, processes, registry, replays
from equivalence.cases import Options
from equivalence.registry import Check
from equivalence.runner import CheckResult, run_check

MODULE = """
import os, pathlib, sys, time
from equivalence.cases import Case
from equivalence.findings import Findings

def cases(options):
    return [Case("together", f"case-{i:02d}", {"number": i}) for i in range(options.cases or 12)]

def run(case, options):
    number, findings = case.params["number"], Findings()
    if number % 2 == 0:
        time.sleep(0.02)
    if number == BAD:
        findings.differ("thing", "values", "differs")
    if number == FATAL:
        os.kill(os.getpid(), 9)
    if number == ENDLESS:
        pathlib.Path(sys.argv[-1]).touch()
        time.sleep(600)
    findings.comparisons += 1 + number
    return findings

def shrink(case, options):
    return Case(case.check, case.name, {"number": case.params["number"], "small": True})
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """A check of twelve cases, which processes can import: case 5 differs, case 7 kills its process."""
    (tmp_path / "check_together.py").write_text("BAD, FATAL, ENDLESS = 5, 7, None\n" + MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "check_together", raising=False)
    return Check("together", "a check for tests", "check_together")


def group_is_gone(group: int) -> bool:
    """Whether its last process ends within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def shown(result: CheckResult) -> list[tuple[object, ...]]:
    """All of a result but its times."""
    return [(each.case, each.findings, each.replay, each.known_bad) for each in result.results]


@pytest.mark.ci
def test_results_are_those_of_one_process(check: Check, tmp_path: Path) -> None:
    options = Options(cases=7)
    reported: list[str] = []
    many = run_check(check, options, lambda result: reported.append(result.case.name), tmp_path / "replays", jobs=3)
    one = run_check(check, options, replay_folder=tmp_path / "replays")
    assert shown(many) == shown(one)
    assert reported == [f"case-{number:02d}" for number in range(7)]
    assert many.last_line == "together: 7 cases, 1 differences"
    (path,) = (tmp_path / "replays").glob("together-case-05*.json")
    assert json.loads(path.read_text())["params"]["small"]


@pytest.mark.ci
def test_a_process_that_dies_is_a_difference_of_its_case(check: Check, tmp_path: Path) -> None:
    outcome = run_check(check, Options(only=("case-06", "case-07", "case-1")), replay_folder=tmp_path, jobs=2)
    assert [result.case.name for result in outcome.results] == ["case-06", "case-07", "case-10", "case-11"]
    assert [len(result.findings.differences) for result in outcome.results] == [0, 1, 0, 0]
    (difference,) = outcome.results[1].findings.differences
    assert (difference.item, difference.kind) == ("case-07", "died")
    assert "SIGKILL" in difference.detail
    assert outcome.results[1].replay is not None
    assert replays.read(outcome.results[1].replay)[0] == outcome.results[1].case


@pytest.mark.slow
def test_the_first_difference_ends_a_run_that_fails_fast(check: Check, tmp_path: Path) -> None:
    outcome = run_check(check, Options(fail_fast=True), replay_folder=tmp_path, jobs=2)
    assert [result.case.name for result in outcome.results][-1] == "case-05"
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_processes_that_do_not_come_up_are_an_error_and_not_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = (
        "import multiprocessing as m\nif m.parent_process(): raise RuntimeError('lame')\nBAD = FATAL = ENDLESS = None\n"
    )
    (tmp_path / "check_lame.py").write_text(source + MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.CHECKS, "lame", Check("lame", "a check for tests", "check_lame"))
    assert cli.main(["run", "lame", "--jobs", "2"]) == 1
    out, err = capfd.readouterr()
    assert out.splitlines()[-1] == "lame: 0 cases, 0 differences"
    assert "before its first case" in err


@pytest.mark.slow
def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C as a terminal sends it: to the whole group."""
    script = textwrap.dedent("""
        import sys
        from equivalence import cli, registry
        from equivalence.registry import Check
        if __name__ == "__main__":
            registry.CHECKS["together"] = Check("together", "a check for tests", "check_together")
            sys.exit(cli.main(["run", "together", "--jobs", "2"]))
    """)
    (tmp_path / "check_together.py").write_text("BAD, FATAL, ENDLESS = None, None, 3\n" + MODULE)
    (tmp_path / "script.py").write_text(script)
    begun = tmp_path / "begun"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path)])}
    command = [sys.executable, str(tmp_path / "script.py"), str(begun)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        limit = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=60)
        assert running.returncode == 130
        assert err == "error: interrupted\n"
        assert group_is_gone(running.pid)


@pytest.mark.ci
def test_every_check_has_what_a_run_calls() -> None:
    for check in registry.CHECKS.values():
        module = check.load()
        assert all(callable(getattr(module, name)) for name in ("cases", "run", "shrink")), check.name


@pytest.mark.ci
@pytest.mark.parametrize(("count", "jobs"), [(1, 4), (7, 3), (10_000, 16), (48, 2)])
def test_a_case_is_not_given_twice_and_none_is_left_out(count: int, jobs: int) -> None:
    assert [number for block in processes.blocks_of(count, jobs) for number in block] == list(range(count))
