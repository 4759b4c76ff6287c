"""The faults planted in the engine fit its sources, and there are enough of them."""

from __future__ import annotations

import pytest

from equivalence.mutations import batch_invariance, deterministic_sampling, engine, structured_output, yoco

pytestmark = pytest.mark.ci

TABLE = (*batch_invariance.TABLE, *yoco.TABLE, *deterministic_sampling.TABLE, *structured_output.TABLE)


def test_there_are_enough_faults_and_no_name_twice() -> None:
    assert len({mutation.name for mutation in TABLE}) == len(TABLE) >= 20


@pytest.mark.parametrize("mutation", TABLE, ids=lambda mutation: mutation.name)
def test_every_fault_matches_the_source_once(mutation: engine.Mutation) -> None:
    text = (engine.ROOT / mutation.path).read_text()
    compile(engine.substitute(text, mutation), mutation.path, "exec")
    assert mutation.path.startswith("optimized/")
    assert mutation.why.startswith("§")
