"""A fault counts as caught only when the check itself reports differences; the tables fit the sources they distort."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from equivalence.errors import SetupError, UsageError
from equivalence.mutations import engine
from equivalence.mutations.model import TABLE

pytestmark = pytest.mark.ci

FAULT = engine.Mutation("fault", "module.py", "one", "two", "a clause")


def test_a_fault_must_match_exactly_once() -> None:
    assert engine.substitute("one three", FAULT) == "two three"
    for text in ("three", "one one"):
        with pytest.raises(SetupError, match="fault"):
            engine.substitute(text, FAULT)


@pytest.mark.parametrize(
    ("status", "stdout", "caught"),
    [
        (1, "    values x: 2 apart\nmodel: 4 cases, 1 differences\n", True),
        (0, "model: 4 cases, 0 differences\n", False),
        (1, "    raised x: ValueError\nmodel: 4 cases, 1 differences\n", False),
        (1, "", False),
        (1, "model: 0 cases, 0 differences\n", False),
        (2, "model: 4 cases, 1 differences\n", False),
        (-9, "model: 4 cases, 1 differences\n", False),
    ],
)
def test_only_reported_differences_count_as_caught(status: int, stdout: str, caught: bool) -> None:
    assert engine.read_verdict(status, stdout, "ImportError").caught is caught


def test_a_planted_fault_is_taken_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "module.py"
    path.write_text("one")
    seen: list[str] = []

    def judge(check: str, tree: Path, prefixes: object, backend: str) -> engine.Verdict:
        seen.append(path.read_text())
        return engine.Verdict(True, "")

    monkeypatch.setattr(engine, "judge", judge)
    assert engine.plant("check", tmp_path, FAULT, (), "cpu").caught
    assert (seen, path.read_text()) == (["two"], "one")


def test_an_unknown_fault_or_table_is_refused() -> None:
    with pytest.raises(UsageError, match="no mutations"):
        engine.load_table("nothing")
    with pytest.raises(UsageError, match="no_such_fault"):
        engine.run("model", ["no_such_fault"], lambda line: None)
    with pytest.raises(UsageError, match="graph_is_not_replayed of check batch_invariance on backend cpu"):
        engine.run("batch_invariance", ["graph_is_not_replayed"], lambda line: None)
    with pytest.raises(UsageError, match="model has no mutations on backend cuda"):
        engine.run("model", [], lambda line: None, "cuda")


@pytest.mark.parametrize(("backend", "planted"), [("cpu", ["both"]), ("cuda", ["both", "graphs"])])
def test_faults_of_a_backend_are_planted_there_only(
    backend: str, planted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text("one")
    table = dataclasses.replace(FAULT, name="both"), dataclasses.replace(FAULT, name="graphs", backend="cuda")
    commands: list[list[str]] = []

    def completed(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "check: 1 cases, 0 differences\n", "")

    monkeypatch.setattr(engine, "load_table", lambda check: (table, ("0",)))
    monkeypatch.setattr(engine, "copy_tree", lambda scratch: tmp_path)
    monkeypatch.setattr(subprocess, "run", completed)
    said: list[str] = []
    assert engine.run("check", (), said.append, backend) == (0, len(planted))
    assert [line.split()[1] for line in said] == planted
    assert len(commands) == 1 + len(planted)
    assert all(command[command.index("--backend") + 1] == backend for command in commands)


def test_there_are_enough_faults_and_no_name_twice() -> None:
    assert len({mutation.name for mutation in TABLE}) == len(TABLE) >= 25


@pytest.mark.parametrize("mutation", TABLE, ids=lambda mutation: mutation.name)
def test_every_fault_of_the_model_matches_the_source_once(mutation: engine.Mutation) -> None:
    text = (engine.ROOT / mutation.path).read_text()
    compile(engine.substitute(text, mutation), mutation.path, "exec")
    assert mutation.why.startswith("§")
