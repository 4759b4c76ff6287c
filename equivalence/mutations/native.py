"""Plants faults in the C++ core: a copy of the sources is changed, compiled and run against the simulator.

Knows how to build the extension in a temporary folder, from which it is never installed; knows no fault. A fault counts
as caught only when the simulator ends by itself and names a law; a copy that does not compile, or dies, is a broken
fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pybind11

from equivalence.errors import SetupError
from equivalence.mutations.engine import ROOT, Mutation, Verdict, substitute

SECONDS = 60
"""Within which the simulator must catch a fault."""

_COPIED = (
    "optimized/__init__.py",
    "reference/__init__.py",
    "reference/scheduler.py",
    "reference/scheduling",
    "reference/verification_lengths.py",
    "equivalence/__init__.py",
    "equivalence/simulator",
)


def run(table: Sequence[Mutation], say: Callable[[str], None]) -> tuple[int, int]:
    """Plant every fault. Returns how many were caught and how many there are.

    Raises SetupError when the copy does not build, or a law breaks, before anything is planted.
    """
    with tempfile.TemporaryDirectory(prefix="mutations-") as scratch:
        tree = Tree(Path(scratch))
        tree.build()
        clean = tree.judge(SECONDS / 4)
        if clean.caught or clean.detail:
            raise SetupError(f"the core does not pass before anything is planted: {clean.detail}")
        caught = 0
        for mutation in table:
            begin = time.perf_counter()
            verdict = tree.plant(mutation)
            caught += verdict.caught
            word = "caught" if verdict.caught else "MISSED"
            say(f"  {word} {mutation.name} ({time.perf_counter() - begin:.1f} s): {verdict.detail or 'no law broke'}")
    return caught, len(table)


class Tree:
    """A copy of the core and of what the simulator needs, under `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.objects.mkdir()
        shutil.copytree(ROOT / "csrc", root / "csrc")
        for name in _COPIED:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "tests"))
            else:
                shutil.copy(ROOT / name, target)

    def build(self) -> None:
        """Compile everything and link. Raises SetupError with the compiler's last words."""
        for source in sorted((self.root / "csrc").glob("*.cpp")):
            self._compile(source)
        self._link()

    def plant(self, mutation: Mutation) -> Verdict:
        """Plant one fault, judge, and take it out again."""
        path = self.root / mutation.path
        clean = path.read_text()
        kept = self._object(path).read_bytes()
        try:
            path.write_text(substitute(clean, mutation))
            self._compile(path)
            self._link()
            return self.judge(SECONDS)
        except SetupError as error:
            return Verdict(False, str(error))
        finally:
            path.write_text(clean)
            self._object(path).write_bytes(kept)

    def judge(self, seconds: float) -> Verdict:
        """Run the simulator until a law breaks or the time is over."""
        command = [sys.executable, "-m", "equivalence.simulator", "--worlds", "1000000", "--steps", "300"]
        command += ["--seconds", str(seconds)]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=2 * seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Verdict(False, f"no verdict after {2 * seconds:g} s")
        if done.returncode == 1 and done.stdout.startswith("seed "):
            return Verdict(True, done.stdout.splitlines()[0][:200])
        if done.returncode == 0:
            return Verdict(False, "")
        return Verdict(False, f"the run broke (status {done.returncode}): {done.stderr.strip().splitlines()[-1:]}")

    def _object(self, source: Path) -> Path:
        return self.objects / f"{source.stem}.o"

    def _compile(self, source: Path) -> None:
        includes = [f"-I{folder}" for folder in (sysconfig.get_path("include"), pybind11.get_include())]
        flags = ["-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden", "-w", *includes]
        _execute([_compiler(), *flags, "-c", str(source), "-o", str(self._object(source))])

    def _link(self) -> None:
        library = self.root / "optimized" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
        fresh = library.with_suffix(".new")
        _execute([_compiler(), "-shared", "-o", str(fresh), *[str(path) for path in self.objects.glob("*.o")]])
        fresh.replace(library)


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def _execute(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SetupError(f"no C++ compiler: {error}") from error
    if done.returncode != 0:
        raise SetupError(f"{command[-1]} does not build: {' | '.join(done.stderr.strip().splitlines()[:3])}")
