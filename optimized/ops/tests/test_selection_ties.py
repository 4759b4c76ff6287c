"""Selections against their definition on scores full of ties: higher score first, then the lower index."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from optimized.ops.experts import route_experts
from optimized.ops.selection import select_candidates, select_topk

pytestmark = pytest.mark.ci

GRID = [-2.0, -1.5, -0.0, 0.0, 0.5, 1.0, math.inf]


def tied_scores(rng: np.random.Generator, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of six values, both zeros among them, invisible ones -inf; and the visible counts."""
    scores = torch.from_numpy(rng.choice(GRID[:-1], size=(rows, columns))).to(torch.bfloat16)
    visible = torch.from_numpy(rng.integers(0, columns + 1, size=rows))
    return scores.masked_fill(torch.arange(columns) >= visible[:, None], -torch.inf), visible


def best_blocks(row: list[float], visible: int, size: int, count: int) -> set[int]:
    """Blocks that a row keeps, by the definition."""
    blocks = [max(row[start : start + size]) for start in range(0, len(row), size)]
    if visible:
        blocks[(visible - 1) // size] = math.inf
    ranked = sorted(range(len(blocks)), key=lambda block: (-blocks[block], block))[:count]
    return {block for block in ranked if blocks[block] > -math.inf}


def best_entries(row: list[float], entries: Iterable[int]) -> list[int]:
    """Entries by descending score, then ascending index."""
    return sorted(entries, key=lambda entry: (-row[entry], entry))


@pytest.mark.parametrize("columns", [1, 7, 40, 131])
@pytest.mark.parametrize("k", [1, 8, 64])
def test_topk_takes_the_lower_index_among_equals(rng: np.random.Generator, columns: int, k: int) -> None:
    scores, visible = tied_scores(rng, 50, columns)
    for row, seen, found in zip(
        scores.tolist(), visible.tolist(), select_topk(scores, visible, k).tolist(), strict=True
    ):
        chosen = sorted(best_entries(row, range(seen))[:k])
        assert found == chosen + [-1] * (k - len(chosen))


@pytest.mark.parametrize("size", [1, 4, 8])
def test_candidates_hold_the_newest_block_and_the_best_others(rng: np.random.Generator, size: int) -> None:
    scores, visible = tied_scores(rng, 50, 61)
    kept = select_candidates(scores, visible, size, 5)
    for row, seen, blocks in zip(scores.tolist(), visible.tolist(), kept.tolist(), strict=True):
        assert {block for block, flag in enumerate(blocks) if flag} == best_blocks(row, seen, size, 5)


def test_topk_stays_inside_candidates(rng: np.random.Generator) -> None:
    scores, visible = tied_scores(rng, 50, 61)
    candidates = select_candidates(scores, visible, 4, 5)
    for row, seen, allowed, found in zip(
        scores.tolist(),
        visible.tolist(),
        candidates.tolist(),
        select_topk(scores, visible, 9, candidates, 4).tolist(),
        strict=True,
    ):
        inside = [entry for entry in range(seen) if allowed[entry // 4]]
        chosen = sorted(best_entries(row, inside)[:9])
        assert found == chosen + [-1] * (9 - len(chosen))


def test_equal_experts_go_to_the_lower_id() -> None:
    ids, weights = route_experts(
        torch.zeros(2, 8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64), 3, True, 1.5
    )
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert weights.tolist() == pytest.approx(np.full((2, 3), 0.5))


def test_bias_chooses_experts_but_does_not_weigh_them() -> None:
    bias = torch.tensor([0.0, 5.0, 0.0, 5.0], dtype=torch.float64)
    ids, weights = route_experts(torch.tensor([[3.0, 0.0, 2.0, 0.0]], dtype=torch.float64), bias, 2, False, 1.0)
    assert ids.tolist() == [[1, 3]]
    assert weights[0].tolist() == pytest.approx([math.sqrt(math.log(2))] * 2)
