"""Imports go one way: `reference.spec` <- everyone; `reference`, `optimized` <- equivalence, benchmarks; `vendor` <-
optimized.ops; nobody <- equivalence. Held twice: on the source, and by importing in a new process.
"""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[1]
PACKAGES = ("reference", "optimized", "vendor", "equivalence", "benchmarks")
JUDGES = ("equivalence", "benchmarks")
#: Imported module -> modules that may import it, besides itself. The longest entry that matches decides.
ALLOWED = {
    "reference.spec": PACKAGES,
    "reference": JUDGES,
    "optimized": JUDGES,
    "vendor": ("optimized.ops",),
    "equivalence": (),
    "benchmarks": (),
}
#: Packages that the vocabulary and the reference do without at import.
HEAVY = {
    "reference.spec": ("torch", "tokenizers", "safetensors", "tilelang", "triton"),
    "reference": ("tokenizers", "tilelang", "triton", "optimized"),
    "optimized": ("torch", "tokenizers", "tilelang", "triton"),
}


def _inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def broken_rule(importer: str, imported: str) -> str | None:
    """The rule that an import of `imported` by `importer` breaks."""
    rule = max((name for name in ALLOWED if _inside(imported, name)), key=len, default=None)
    if rule is None or importer.split(".")[0] == imported.split(".")[0]:
        if rule == "reference" and _inside(importer, "reference.spec"):
            return f"{importer} imports {imported}: the vocabulary computes nothing"
        return None
    if any(_inside(importer, name) for name in ALLOWED[rule]):
        return None
    return f"{importer} imports {imported}: only {', '.join(ALLOWED[rule]) or 'nobody'} may"


def imports(source: str, importer: str, is_package: bool) -> Iterator[str]:
    """Every module that the source names in an import statement, wherever it stands, as absolute names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = importer.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base]).strip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found.append((name.removesuffix(".__init__"), path))
    return found


def test_every_import_of_the_tree_goes_one_way() -> None:
    broken = []
    for name, path in modules():
        for imported in imports(path.read_text(encoding="utf-8"), name, path.name == "__init__.py"):
            broken.append(broken_rule(name, imported))
    assert not [message for message in broken if message]


@pytest.mark.parametrize(
    ("importer", "source", "allowed"),
    [
        ("optimized.llm", "from reference.spec import SamplingParams", True),
        ("optimized.llm", "from reference import spec", True),
        ("optimized.llm", "import reference.sampler", False),
        ("optimized.llm", "def f():\n    from reference import sampler", False),
        ("reference.model.moe", "from optimized import LLM", False),
        ("reference.model.moe", "from ..spec import config", True),
        ("reference.spec.config", "from .. import sampler", False),
        ("reference.spec.config", "from . import errors", True),
        ("equivalence.checks", "import reference, optimized", True),
        ("optimized.llm", "import equivalence", False),
        ("benchmarks.engine", "from equivalence import checks", False),
        ("optimized.ops.moe", "import vendor.deep_gemm", True),
        ("optimized.model.moe", "import vendor.deep_gemm", False),
    ],
)
def test_the_rules_themselves(importer: str, source: str, allowed: bool) -> None:
    broken = [broken_rule(importer, imported) for imported in imports(source, importer, is_package=False)]
    assert all(message is None for message in broken) == allowed


@pytest.mark.parametrize("package", HEAVY)
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    script = f"import sys, {package}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(loaded.stdout.split()) & set(HEAVY[package])


def test_help_is_quick_and_loads_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "optimized", "--help"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "usage" in shown.stdout
    assert not re.search(r"\| +(torch|tokenizers)$", shown.stderr, re.MULTILINE)
    assert min(seconds) < 0.5  # processor time: what an idle machine takes, also while other tests run


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for name, path in modules() if ".tests" not in name}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]
