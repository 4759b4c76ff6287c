"""The compiled module has the names that its stub promises, and no others; pages are counted as the stub says."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from optimized import _core
from optimized._core import Admission, PageManager

pytestmark = pytest.mark.ci

STUB = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def test_the_module_has_exactly_the_names_of_the_stub() -> None:
    assert {name for name in dir(_core) if not name.startswith("_")} == CLASSES.keys() | FUNCTIONS.keys()


@pytest.mark.parametrize("name", ["PageManager", "StepPlan", "Scheduler"])
def test_a_class_has_exactly_the_members_of_the_stub(name: str) -> None:
    promised = {node.name for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    built = {member for member in vars(getattr(_core, name)) if not member.startswith("_")}
    assert built == {member for member in promised if not member.startswith("_")}


def test_argument_names_are_those_of_the_stub() -> None:
    members = [(CLASSES[name].body, vars(getattr(_core, name))) for name in ("PageManager", "Scheduler")]
    for nodes, built in [(STUB.body, vars(_core)), *members]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                promised = [argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]]
                signature = (built[node.name].__doc__ or "").splitlines()[0]
                assert all(f"{argument}:" in signature for argument in promised), signature


def test_page_zero_is_reserved_and_the_verdict_has_three_values() -> None:
    pages = PageManager(8, 4)
    assert [pages.can_allocate(count) for count in (0, 7, 8)] == [Admission.OK, Admission.OK, Admission.NEVER]
    assert pages.allocate(7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert pages.can_allocate(1) is Admission.LATER
    with pytest.raises(RuntimeError, match=r"allocate\(1\): 0 pages are free"):
        pages.allocate(1)


def test_a_page_is_free_when_its_last_owner_leaves() -> None:
    pages = PageManager(8, 4)
    mine = pages.allocate(2)
    pages.retain(mine[:1])
    pages.release(mine)
    assert [pages.references(page) for page in mine] == [1, 0]
    assert pages.num_free == 6
    pages.release(mine[:1])
    assert pages.num_free == pages.num_usable == 7
    assert pages.allocate(1).tolist() == [1]


@pytest.mark.parametrize("page", [0, 3, 8, -1])
def test_a_page_without_owner_can_be_neither_retained_nor_released(page: int) -> None:
    pages = PageManager(8, 4)
    pages.allocate(2)
    for call in (pages.retain, pages.release):
        with pytest.raises(RuntimeError, match=f"page {page} has no owner"):
            call(np.array([page], np.int32))
    assert pages.num_free == 5
