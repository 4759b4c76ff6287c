"""Drafts depend on the request's own context only, however it was computed and whoever drafts beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from optimized.model.draft import Draft
from optimized.model.tests.random_models import FULL, PLAIN, Chunk, ModelInCaches, write_checkpoint

pytestmark = pytest.mark.ci

PAGES = [list(range(1 + 8 * slot, 9 + 8 * slot)) for slot in range(5)]


def assert_same(found: Draft, expected: Draft) -> None:
    assert torch.equal(found.ids, expected.ids)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.confidence, expected.confidence)


def row(draft: Draft, index: int) -> Draft:
    keep = slice(index, index + 1)
    return Draft(draft.ids[keep], draft.logits[keep], draft.confidence[keep])


@pytest.mark.parametrize("config", [FULL, PLAIN], ids=["full", "plain"])
def test_drafts_alone_equal_drafts_beside_others(config, tmp_path: Path, rng: np.random.Generator) -> None:
    write_checkpoint(config, tmp_path, seed=1)
    model = ModelInCaches(config, tmp_path)
    lengths, anchors, alone = [1, 5, 30], [], []
    for slot, length in enumerate(lengths, start=1):
        tokens = rng.integers(0, config.vocab_size, size=length).tolist()
        model.in_chunks(tokens, 4, slot, PAGES[slot])
        anchors.append((int(rng.integers(0, config.vocab_size)), length - 1, slot))
        alone.append(model.propose(anchors[-1:]))
    together = model.propose(anchors[::-1])
    for index, expected in enumerate(alone[::-1]):
        assert_same(row(together, index), expected)


def test_context_in_chunks_or_after_a_rejection_gives_the_same_drafts(tmp_path: Path, rng: np.random.Generator) -> None:
    write_checkpoint(FULL, tmp_path, seed=2)
    model, length = ModelInCaches(FULL, tmp_path), 27
    tokens = rng.integers(0, FULL.vocab_size, size=length).tolist()
    model.in_chunks(tokens, length, 1, PAGES[1])
    expected = model.propose([(7, length - 1, 1)])
    model.in_chunks(tokens, 5, 2, PAGES[2])
    assert_same(model.propose([(7, length - 1, 2)]), expected)
    rejected = [*tokens, 9, 8, 7]
    model.run([Chunk(rejected, length, length + 3, 2, PAGES[2])])
    assert_same(model.propose([(7, length - 1, 2)]), expected)
