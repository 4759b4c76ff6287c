"""Counts of committed tokens, with those of a block on top that leave no trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from optimized.engine.token_counts import TokenCounts

pytestmark = pytest.mark.ci


def counted(counts: TokenCounts, block: list[int]) -> tuple[dict[int, int], list[int]]:
    ids, times = counts.output(block)
    return dict(zip(ids.tolist(), times.tolist(), strict=True)), sorted(counts.seen(block).tolist())


def test_counts_are_those_of_output_and_block_and_a_rejected_block_leaves_no_trace(rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 9, 6).tolist()
    output: list[int] = []
    counts = TokenCounts(prompt)
    for _ in range(40):
        block = rng.integers(0, 12, rng.integers(0, 5)).tolist()
        assert counted(counts, block) == (Counter(output + block), sorted({*prompt, *output, *block}))
        assert counted(counts, []) == (Counter(output), sorted({*prompt, *output}))
        output.append(int(rng.integers(0, 12)))
        counts.commit(output[-1])
