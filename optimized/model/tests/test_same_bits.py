"""The contract on the CPU: a token's logits do not depend on chunks, companions, pages, slots or leftovers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from optimized.model.tests.random_models import CONFIGS, FULL, Chunk, ModelInCaches, write_checkpoint

LENGTH = 45
ci = pytest.mark.ci


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, config in CONFIGS.items():
        made[name] = tmp_path_factory.mktemp("models") / name.replace(" ", "_")
        write_checkpoint(config, made[name], seed=len(name))
    return made


def drawn_tokens(rng: np.random.Generator, count: int = LENGTH) -> list[int]:
    return rng.integers(0, FULL.vocab_size, size=count).tolist()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=ci), 5, pytest.param(16, marks=ci), 31])
def test_chunks_and_single_rows_equal_one_piece(folders: dict[str, Path], name: str, size: int, rng) -> None:
    model, tokens = ModelInCaches(CONFIGS[name], folders[name]), drawn_tokens(rng)
    whole = model.in_chunks(tokens, LENGTH, 1, list(range(1, 9)))
    assert bool(torch.isfinite(whole).all())
    assert torch.equal(model.in_chunks(tokens, size, 2, list(range(20, 10, -1))), whole)


@ci
@pytest.mark.parametrize("name", CONFIGS)
def test_companions_do_not_matter(folders: dict[str, Path], name: str, rng) -> None:
    model = ModelInCaches(CONFIGS[name], folders[name])
    lengths = [1, 17, 45, 30]
    sequences = [drawn_tokens(rng, length) for length in lengths]
    pages = rng.permutation(np.arange(1, 65)).tolist()
    tables = [pages[10 * i : 10 * i + 10] for i in range(4)]
    alone = [model.in_chunks(tokens, len(tokens), 5, list(range(1, 9))) for tokens in sequences]
    chunks = [
        Chunk(tokens, 0, len(tokens), slot + 1, table)
        for slot, (tokens, table) in enumerate(zip(sequences, tables, strict=True))
    ]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2]):
        for index, found in zip(order, model.run([chunks[index] for index in order]), strict=True):
            assert torch.equal(found, alone[index])


@ci
def test_decode_rows_equal_prefill_rows_beside_others(folders: dict[str, Path], rng) -> None:
    model = ModelInCaches(FULL, folders["full"])
    sequences = [drawn_tokens(rng) for _ in range(3)]
    whole = [model.in_chunks(tokens, LENGTH, 5, list(range(50, 60))) for tokens in sequences]
    reached = [20, 7, 33]
    slots, tables = [4, 1, 2], [list(range(1, 10)), list(range(10, 20)), list(range(20, 30))]
    for index, end in enumerate(reached):
        model.in_chunks(sequences[index][:end], 4, slots[index], tables[index])
    for _ in range(12):
        chunks = [Chunk(sequences[i], reached[i], reached[i] + 1, slots[i], tables[i]) for i in range(3)]
        for index, found in enumerate(model.run(chunks)):
            assert torch.equal(found[0], whole[index][reached[index]])
            reached[index] += 1


@ci
@pytest.mark.parametrize("name", CONFIGS)
def test_leftovers_of_others_are_never_read(folders: dict[str, Path], name: str, rng) -> None:
    model, tokens, pages = ModelInCaches(CONFIGS[name], folders[name]), drawn_tokens(rng), list(range(1, 9))
    clean = model.in_chunks(tokens, 7, 1, pages)
    model.poison(list(range(6)), list(range(65)))
    parts = []
    for start in range(0, LENGTH, 7):
        end = min(start + 7, LENGTH)
        used = pages[: -(-end // 8)]
        model.poison([0, 2, 3, 4, 5], [page for page in range(65) if page not in used])
        parts += model.run([Chunk(tokens, start, end, 1, pages)])
    assert torch.equal(torch.cat(parts), clean)


@ci
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_computed_again_after_a_rejection_are_the_same(folders: dict[str, Path], name: str, rng) -> None:
    config = CONFIGS[name]
    model, tokens, pages = ModelInCaches(config, folders[name]), drawn_tokens(rng), list(range(1, 9))
    whole = model.in_chunks(tokens, LENGTH, 2, list(range(10, 19)))
    reached = 11
    model.in_chunks(tokens[:reached], reached, 1, pages)
    while reached + 8 < LENGTH:
        verified = config.dspark_block_size
        wrong = tokens[: reached + 1] + drawn_tokens(rng, verified)
        first = model.run([Chunk(wrong, reached, reached + 1 + verified, 1, pages)])[0]
        assert torch.equal(first[0], whole[reached])
        accepted = int(rng.integers(1, 3))
        again = model.run([Chunk(tokens, reached, reached + accepted, 1, pages)])[0]
        assert torch.equal(again, whole[reached : reached + accepted])
        reached += accepted


@pytest.mark.parametrize("name", ["full", "ratio 4"])
@pytest.mark.parametrize("replay_start", [1, pytest.param(13, marks=ci), 40])
def test_replayed_rows_do_not_depend_on_chunks(folders: dict[str, Path], name: str, replay_start: int, rng) -> None:
    model, tokens = ModelInCaches(CONFIGS[name], folders[name]), drawn_tokens(rng)
    whole = model.in_chunks(tokens, LENGTH, 1, list(range(1, 9)), replay_start)
    exact = model.in_chunks(tokens, LENGTH, 3, list(range(1, 9)))
    for size in (6, 19):
        found = model.in_chunks(tokens, size, 2, list(range(10, 19)), replay_start)
        assert torch.equal(found[replay_start:], whole[replay_start:])
    assert not torch.equal(whole[replay_start:], exact[replay_start:])
