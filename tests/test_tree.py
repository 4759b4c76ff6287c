"""What a newcomer meets: the README's commands, CI's use of them, the length of files, the words of the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
SOURCES = ("*.py", "*.pyi", "*.cpp", "*.hpp", "*.h")
LONGEST = 700


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository that match; all files on disk where there is no git."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return [path for pattern in patterns or ("*",) for path in ROOT.rglob(pattern) if path.is_file()]
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def commands() -> dict[str, str]:
    """The README's one-line commands by nox session."""
    lines = [line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    return {m[1]: line for line in lines if (m := re.search(r"nox -s (\w+)$", line)) and line.startswith("python3 ")}


def test_the_readme_has_one_line_for_the_demo_and_one_for_the_tests() -> None:
    assert {"demo", "tests"} <= set(commands())


def test_ci_runs_the_readmes_test_command() -> None:
    assert commands()["tests"] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_torch_is_bounded_and_not_needed_to_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "torch>=2.11,<2.14" in project["project"]["dependencies"]
    assert not [line for line in project["build-system"]["requires"] if line.startswith("torch")]


def test_no_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in tracked(*SOURCES)}
    assert not {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > LONGEST}


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in tracked("*.py") if path.read_text(encoding="utf-8").strip() and not _has_docstring(path)]
    assert not [str(path.relative_to(ROOT)) for path in silent]


def _has_docstring(path: Path) -> bool:
    return path.read_text(encoding="utf-8").lstrip().startswith(('"""', 'r"""', "#!"))


def test_every_equivalence_check_has_a_nox_session() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "equivalence", "list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    checks = [line.split()[0] for line in listed.stdout.splitlines()]
    noxfile = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    stated = [
        ast.literal_eval(node.value)
        for node in noxfile.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EQUIVALENCE_CHECKS"
    ]
    assert stated == [tuple(checks)]


def test_every_nox_session_says_what_it_does() -> None:
    noxfile = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    sessions = [node for node in noxfile.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    assert len(sessions) >= 8
    assert not [node.name for node in sessions if not ast.get_docstring(node)]
