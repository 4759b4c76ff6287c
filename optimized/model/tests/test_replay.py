"""Bounded replay: dropped rows change no bit of a kept one, and both modes compute what the definition says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from optimized.model.replay import select_rows
from optimized.model.tests.random_models import CONFIGS, FULL, Chunk, ModelInCaches, write_checkpoint

ci = pytest.mark.ci
LENGTH = 45
PAGES = [list(range(1 + 10 * slot, 11 + 10 * slot)) for slot in range(6)]
NAMES = [name for name, config in CONFIGS.items() if config.kv_source_layer_ids]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name in NAMES:
        made[name] = tmp_path_factory.mktemp("models") / name.replace(" ", "_")
        write_checkpoint(CONFIGS[name], made[name], seed=len(name))
    return made


def drawn_tokens(rng: np.random.Generator, count: int = LENGTH) -> list[int]:
    return rng.integers(0, FULL.vocab_size, size=count).tolist()


@ci
@pytest.mark.parametrize(
    ("begin", "count", "start", "kept"),
    [(0, 5, 0, [0, 1, 2, 3, 4]), (0, 5, 3, [3, 4]), (0, 5, 5, [4]), (0, 5, 50, [4]), (7, 2, 3, [0, 1]), (7, 1, 9, [0])],
)
def test_rows_from_the_start_are_kept_or_one_placeholder(begin: int, count: int, start: int, kept: list[int]) -> None:
    found, query_start = select_rows(np.array([0, 2, 2 + count]), np.array([0, begin]), np.array([0, start]))
    assert found.tolist() == [0, 1, *(2 + row for row in kept)]
    assert query_start.tolist() == [0, 2, 2 + len(kept)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("size", "start"),
    [
        (1, 17),
        pytest.param(7, 1, marks=ci),
        pytest.param(7, 17, marks=ci),
        (7, 36),
        (16, 1),
        (16, 17),
        pytest.param(16, 36, marks=ci),
        pytest.param(LENGTH, 36, marks=ci),
    ],
)
def test_compact_equals_mask(folders: dict[str, Path], name: str, size: int, start: int, rng) -> None:
    model, tokens = ModelInCaches(CONFIGS[name], folders[name]), drawn_tokens(rng)
    masked = model.in_chunks(tokens, LENGTH, 1, PAGES[1], start)
    model.poison([0, 2], [0, *PAGES[2]])
    compact = model.in_chunks(tokens, size, 2, PAGES[2], start, compact=True)
    assert torch.equal(compact[-(LENGTH - start) :], masked[start:])
    assert torch.equal(model.in_chunks(tokens, size, 3, PAGES[3], start)[start:], masked[start:])


@ci
@pytest.mark.parametrize("name", NAMES)
def test_compact_beside_others_and_in_decoding(folders: dict[str, Path], name: str, rng) -> None:
    model = ModelInCaches(CONFIGS[name], folders[name])
    sequences, starts = [drawn_tokens(rng) for _ in range(3)], [20, 0, 41]
    masked = [model.in_chunks(sequences[i], LENGTH, 4, PAGES[4], starts[i]) for i in range(3)]
    ends = [30, 13, 43]
    chunks = [Chunk(sequences[i], 0, ends[i], i + 1, PAGES[i + 1], starts[i]) for i in range(3)]
    for index, found in enumerate(model.run(chunks, compact=True)):
        assert torch.equal(found, masked[index][starts[index] : ends[index]])
    last = [Chunk(sequences[i], ends[i], LENGTH, i + 1, PAGES[i + 1], starts[i]) for i in range(3)]
    for index, found in enumerate(model.run(last, compact=True)):
        assert torch.equal(found, masked[index][ends[index] :])


@ci
def test_drafts_read_no_row_before_the_start(folders: dict[str, Path], rng) -> None:
    model, tokens = ModelInCaches(FULL, folders["full"]), drawn_tokens(rng)
    model.in_chunks(tokens, LENGTH, 1, PAGES[1], 40)
    model.in_chunks(tokens, 16, 2, PAGES[2], 40, compact=True)
    masked, compact = (model.propose([(7, LENGTH - 1, slot)], replay_start=40) for slot in (1, 2))
    assert torch.equal(masked.logits, compact.logits)


@ci
@pytest.mark.parametrize("name", NAMES)
def test_a_start_before_all_that_the_last_row_reads_changes_nothing(folders: dict[str, Path], name: str, rng) -> None:
    config = CONFIGS[name]
    layers = config.num_hidden_layers - config.decoder_start
    start = LENGTH - 1 - layers * (config.sliding_window - 1)
    model, tokens = ModelInCaches(config, folders[name]), drawn_tokens(rng)
    exact = model.in_chunks(tokens, LENGTH, 1, PAGES[1])[-1]
    assert torch.equal(model.in_chunks(tokens, 16, 2, PAGES[2], start, compact=True)[-1], exact)
    assert not torch.equal(model.in_chunks(tokens, 16, 2, PAGES[2], LENGTH - 9, compact=True)[-1], exact)
