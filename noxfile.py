"""Sessions for developers and CI; `nox -l` lists them, and arguments after `--` are passed on.

Knows how to make environments and which command each session runs; knows nothing about what the commands test.
Sessions that need torch share the environment of the session `environment`, which is built once and rebuilt when the
packaging files or the C++ sources change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["demo", "tests"]

# A shell without a PATH of its own does not hand its default on to the compiler's caller.
os.environ.setdefault("PATH", f"/usr/local/bin{os.pathsep}{os.defpath}")

ROOT = Path(__file__).parent
SHARED = ROOT / ".nox" / "environment"
BIN = SHARED / ("Scripts" if sys.platform == "win32" else "bin")
EQUIVALENCE_CHECKS = ("model", "batch_invariance", "yoco", "scheduler", "deterministic_sampling", "structured_output")
SANITIZED_TESTS = (
    "equivalence/tests/test_choose_budget.py",
    *(
        f"optimized/engine/tests/test_{name}.py"
        for name in ("core_surface", "scheduler_core", "scheduler_machine", "scheduler_votes")
    ),
)
SANITIZERS = {"address,undefined": "libasan.so", "thread": "libtsan.so"}  # and the library that must be loaded first


def _requirement(name: str) -> str:
    """The requirement of one development tool as pyproject.toml states it."""
    extras = nox.project.load_toml(ROOT / "pyproject.toml")["project"]["optional-dependencies"]["dev"]
    return next(line for line in extras if line.startswith(name))


def _build_inputs() -> str:
    """A fingerprint of everything that an installation depends on."""
    digest = hashlib.sha256()
    for path in sorted([ROOT / "pyproject.toml", ROOT / "setup.py", *(ROOT / "csrc").rglob("*.?pp")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _python(session: nox.Session, *args: str) -> None:
    """Run the shared environment's Python with `args`; OMP_NUM_THREADS of the caller counts, 1 otherwise.

    The models of these sessions are small: on a busy machine, threads that wait for each other cost far more than they
    bring. No result depends on it.
    """
    environ = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    session.run(str(BIN / "python"), *args, env=environ, external=True)


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install the project, its C++ extension and its development tools; the other sessions share this environment."""
    stamp = SHARED / "counterpoint-build"
    built = stamp.read_text() if stamp.exists() else ""
    if built != _build_inputs() or not list((ROOT / "optimized").glob("_core*.so")):
        session.install("--quiet", "--editable", ".[dev]")
        stamp.write_text(_build_inputs())


@nox.session(requires=["environment"], venv_backend="none")
def demo(session: nox.Session) -> None:
    """Generate text from the bundled model on the CPU, then show that reference and engine agree."""
    _python(session, "-m", "equivalence.demo", *session.posargs)
    _python(session, "-m", "equivalence", "run", "model", "--cases", "8")


@nox.session(requires=["environment"], venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run every test that this machine can run, on two processes."""
    _python(session, "-m", "pytest", *(session.posargs or ["-n", "2"]))


@nox.session(requires=["environment"], venv_backend="none", default=False)
@nox.parametrize("check", EQUIVALENCE_CHECKS)
def equivalence(session: nox.Session, check: str) -> None:
    """Run one equivalence check."""
    _python(session, "-m", "equivalence", "run", check, *session.posargs)


@nox.session(requires=["environment"], venv_backend="none", default=False)
def mutations(session: nox.Session) -> None:
    """Plant faults, one at a time, and see the equivalence checks catch each of them."""
    _python(session, "-m", "equivalence", "mutations", *(session.posargs or EQUIVALENCE_CHECKS))


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Check style and imports with ruff."""
    session.install("--quiet", _requirement("ruff"))
    session.run("ruff", "check", ".", *session.posargs)


@nox.session(requires=["environment"], venv_backend="none", default=False)
def types(session: nox.Session) -> None:
    """Check types with mypy."""
    _python(session, "-m", "mypy", *session.posargs)


@nox.session(requires=["environment"], venv_backend="none", default=False)
def sanitize(session: nox.Session) -> None:
    """Build the C++ core with the sanitizers (address and undefined behaviour, threads) and run its tests on each."""
    copy = Path(session.create_tmp()) / "tree"
    for kind, library in SANITIZERS.items():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "*.so", "build", "golden", "*.safetensors"))
        flags = f"-fsanitize={kind} -fno-omit-frame-pointer -g -O1"
        flags += "" if kind == "thread" else " -fno-sanitize-recover=all"
        build = {"CFLAGS": flags, "CXXFLAGS": flags, "LDFLAGS": flags}
        preloaded = " ".join(
            subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
            for name in (library, "libstdc++.so")  # the second so that the first finds the C++ exceptions
        )
        # detect_leaks=0: the interpreter itself leaks at exit.
        checks = {"LD_PRELOAD": preloaded, "ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "exitcode=66"}
        with session.chdir(copy):
            session.run(str(BIN / "python"), "setup.py", "-q", "build_ext", "--inplace", env=build, external=True)
            binary = next(Path("optimized").glob("_core*.so"))
            if f"{library[3:7]}_init".encode() not in binary.read_bytes():
                session.error(f"{binary} was built without the {kind} sanitizer")
            arguments = ("-q", "--capture=sys", *(session.posargs or SANITIZED_TESTS))
            session.run(str(BIN / "python"), "-m", "pytest", *arguments, env=checks, external=True)


@nox.session(requires=["environment"], venv_backend="none", default=False)
def benchmarks(session: nox.Session) -> None:
    """Measure both voices: tokens/s on the bundled model (arguments go here), and what a step costs the schedulers."""
    _python(session, "-m", "benchmarks.engine", *(session.posargs or ["--model", "tiny", "--batch", "1,8,64"]))
    if not session.posargs:
        _python(session, "-m", "benchmarks.scheduler")
