"""Rates of acceptance: their definitions, and the trap of taking one for another."""

from __future__ import annotations

import pytest

from reference.acceptance_statistics import Acceptance
from reference.speculation import Block

pytestmark = pytest.mark.ci


def block(drafts: int, accepted: int, stopped: bool = False, cut: int = 0) -> Block:
    """A block; cut: committed tokens that the completion had no use for."""
    return Block(0, [7] * drafts, [0.0] * 3, accepted, accepted + (not stopped) - cut, stopped)


def test_counts_are_by_slot() -> None:
    blocks = [block(3, 3), block(3, 1), block(2, 2), block(3, 2, stopped=True), block(0, 0), block(3, 2, cut=1)]
    found = Acceptance.of(blocks, 3)
    assert (found.blocks, found.committed) == (6, 4 + 2 + 3 + 2 + 1 + 2)
    assert (found.verified, found.reached, found.accepted) == ([5, 5, 4], [5, 5, 2], [5, 4, 1])
    assert found.tokens_per_block == 14 / 6
    assert found.unconditional == [5 / 6, 4 / 6, 1 / 6]
    assert found.conditional == [1, 4 / 5, 1 / 2]
    assert found.per_draft == 10 / 14


def test_tokens_a_block_are_one_plus_the_unconditional_rates_and_not_powers_of_one() -> None:
    blocks = [block(3, accepted) for accepted in (0, 3, 3, 3)]
    found = Acceptance.of(blocks, 3)
    assert found.tokens_per_block == 1 + sum(found.unconditional) == 3.25
    assert found.conditional == [0.75, 1, 1]


def test_nothing_verified_is_no_rate() -> None:
    found = Acceptance.of([], 2)
    assert (found.tokens_per_block, found.per_draft, found.conditional) == (0, 0, [0, 0])
    assert Acceptance.of([block(0, 0)], 0).tokens_per_block == 1
