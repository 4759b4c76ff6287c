"""Faults in the C++ core: each stands where the table says, one is caught, and a harmless change is not."""

from __future__ import annotations

import pytest

from equivalence.errors import SetupError
from equivalence.mutations import native, scheduler
from equivalence.mutations.engine import ROOT, Mutation, Verdict, substitute


@pytest.mark.ci
@pytest.mark.parametrize("mutation", scheduler.TABLE, ids=lambda mutation: mutation.name)
def test_a_fault_stands_at_one_place_of_the_core(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    assert substitute(text, mutation) != text


@pytest.mark.ci
def test_there_are_at_least_twenty_faults_with_names_of_their_own() -> None:
    assert len({mutation.name for mutation in scheduler.TABLE}) == len(scheduler.TABLE) >= 20


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> native.Tree:
    """A built copy of the core."""
    tree = native.Tree(tmp_path_factory.mktemp("core"))
    tree.build()
    return tree


@pytest.mark.slow
def test_a_fault_is_caught_and_a_harmless_change_is_not(tree: native.Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(mutation for mutation in scheduler.TABLE if mutation.name == "slot_not_restored")
    caught = tree.plant(fault)
    assert caught.caught
    assert "num_free_slots" in caught.detail
    monkeypatch.setattr(native, "SECONDS", 2)
    harmless = Mutation("harmless", fault.path, fault.old, fault.old + " ", "none")
    assert tree.plant(harmless) == Verdict(False, "")


@pytest.mark.slow
def test_a_fault_that_does_not_compile_is_not_caught(tree: native.Tree) -> None:
    fault = next(mutation for mutation in scheduler.TABLE if mutation.name == "slot_not_restored")
    verdict = tree.plant(Mutation("broken", fault.path, fault.old, "slots_.nonsense();", "none"))
    assert not verdict.caught
    assert "does not build" in verdict.detail


@pytest.mark.slow
def test_a_core_without_compiler_is_a_setup_error(tree: native.Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SetupError, match="no C\\+\\+ compiler"):
        tree.build()
