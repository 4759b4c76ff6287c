"""Plants one fault at a time in a copy of the packages and asks whether the check turns red; knows no check.

A fault is a textual substitution that must match exactly once. It counts as caught only when the check ends by itself
and reports differences; a copy that cannot be imported, or a case that raises, is a broken fault, not a caught one.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from equivalence.cases import GOLDEN_VARIABLE, golden_folder
from equivalence.errors import SetupError, UsageError

PACKAGES = ("reference", "optimized", "equivalence")

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT_SECONDS = 300

_LAST_LINE = re.compile(r"^(\w+): (\d+) cases, (\d+) differences$", re.MULTILINE)

_RAISED = re.compile(r"^ +raised ", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """One planted fault.

    name: unique in its table; path: file below the root; old, new: the substitution; why: the clause it breaks;
    cases: prefixes of the cases that are run to catch it (empty: the table's own selection); backend: the one on which
    it is a fault (empty: on every one).
    """

    name: str
    path: str
    old: str
    new: str
    why: str
    cases: tuple[str, ...] = ()
    backend: str = ""


@dataclass(frozen=True)
class Verdict:
    """What came of one run. caught: the check reported differences; detail: the first of them, or what went wrong."""

    caught: bool
    detail: str


def run(check: str, only: Sequence[str], say: Callable[[str], None], backend: str = "cpu") -> tuple[int, int]:
    """Plant every fault of a check that is one on the backend. Returns how many were caught and how many there are.

    Raises UsageError when the check has none there or `only` names an unknown one, SetupError when the check is red
    before anything is planted.
    """
    table, selection = load_table(check)
    table = tuple(mutation for mutation in table if mutation.backend in ("", backend))
    if not table:
        raise UsageError(f"check {check} has no mutations on backend {backend}")
    unknown = set(only) - {mutation.name for mutation in table}
    if unknown:
        raise UsageError(f"unknown mutation {', '.join(sorted(unknown))} of check {check} on backend {backend}")
    chosen = [mutation for mutation in table if not only or mutation.name in only]
    if any(mutation.path.startswith("csrc/") for mutation in chosen):
        native = importlib.import_module("equivalence.mutations.native")
        return native.run(chosen, say)
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        tree = copy_tree(Path(scratch))
        cases = tuple(sorted({case for each in chosen for case in each.cases or selection}))
        clean = judge(check, tree, cases, backend)
        if clean.caught or clean.detail:
            raise SetupError(f"{check} does not pass before anything is planted: {clean.detail}")
        caught = 0
        for mutation in chosen:
            begin = time.perf_counter()
            verdict = plant(check, tree, mutation, selection, backend)
            caught += verdict.caught
            word = "caught" if verdict.caught else "MISSED"
            say(f"  {word} {mutation.name} ({time.perf_counter() - begin:.1f} s): {verdict.detail or 'no difference'}")
    return caught, len(chosen)


def load_table(check: str) -> tuple[tuple[Mutation, ...], tuple[str, ...]]:
    """The faults of a check and the cases that catch them. Raises UsageError when it has none."""
    try:
        module = importlib.import_module(f"equivalence.mutations.{check}")
    except ModuleNotFoundError as error:
        raise UsageError(f"check {check} has no mutations") from error
    return module.TABLE, module.SELECTION


def substitute(text: str, mutation: Mutation) -> str:
    """The text with the fault in it. Raises SetupError unless `old` occurs exactly once."""
    count = text.count(mutation.old)
    if count != 1:
        raise SetupError(
            f"mutation {mutation.name}: {mutation.old!r} occurs {count} times in {mutation.path}, not once"
        )
    return text.replace(mutation.old, mutation.new)


def copy_tree(scratch: Path) -> Path:
    """Copy the packages (golden packs are linked to, not copied). Returns the copy's root."""
    ignore = shutil.ignore_patterns("__pycache__", "golden", "tests", "data")
    for package in PACKAGES:
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, scratch / package, ignore=ignore)
    return scratch


def plant(check: str, tree: Path, mutation: Mutation, selection: tuple[str, ...], backend: str) -> Verdict:
    """Plant one fault, judge, and take it out again."""
    path = tree / mutation.path
    clean = path.read_text()
    try:
        path.write_text(substitute(clean, mutation))
        return judge(check, tree, mutation.cases or selection, backend)
    except SetupError as error:
        return Verdict(False, str(error))
    finally:
        path.write_text(clean)


def judge(check: str, tree: Path, prefixes: Sequence[str], backend: str) -> Verdict:
    """Run the check in the copy, stopping at the first case that differs."""
    command = [sys.executable, "-m", "equivalence", "run", check, "--backend", backend, "--fail-fast"]
    command += [part for prefix in prefixes for part in ("--only", prefix)]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        GOLDEN_VARIABLE: str(golden_folder().resolve()),
    }
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"no verdict after {TIMEOUT_SECONDS} s")
    return read_verdict(done.returncode, done.stdout, done.stderr)


def read_verdict(status: int, stdout: str, stderr: str) -> Verdict:
    """What a finished run says: caught only for status 1 with differences that are no exceptions."""
    lines = _LAST_LINE.findall(stdout)
    if not lines or status not in (0, 1):
        return Verdict(False, f"the run broke (status {status}): {(stderr or stdout).strip().splitlines()[-1:]}")
    if int(lines[-1][1]) == 0:
        return Verdict(False, f"no case ran: {stderr.strip()}")
    if int(lines[-1][2]) == 0:
        return Verdict(False, "")
    shown = [line.strip() for line in stdout.splitlines() if line.startswith("    ")]
    detail = shown[0] if shown else ""
    return Verdict(not _RAISED.search(stdout), detail)
