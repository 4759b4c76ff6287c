"""Counts of committed tokens, with those of a block on top that leave no trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from optimized.engine.token_counts import TokenCounts

pytestmark = pytest.mark.ci


def counted(counts: TokenCounts, drafts: list[int]) -> list[tuple[dict[int, int], list[int]]]:
    """Before each row of a block: the tokens of the output and how often each stands there, and every token seen."""
    ids, times, known = counts.through(drafts)
    return [
        (
            {token: count for token, count in zip(ids.tolist(), row, strict=True) if count},
            sorted({*ids[:known].tolist(), *drafts[:k]}),
        )
        for k, row in enumerate(times.tolist())
    ]


def test_counts_are_those_of_output_and_block_and_a_rejected_block_leaves_no_trace(rng: np.random.Generator) -> None:
    prompt = rng.integers(0, 9, 6).tolist()
    output: list[int] = []
    counts = TokenCounts(prompt)
    for _ in range(40):
        block = rng.integers(0, 12, rng.integers(0, 5)).tolist()
        expected = [
            (Counter(output + block[:k]), sorted({*prompt, *output, *block[:k]})) for k in range(1 + len(block))
        ]
        assert counted(counts, block) == expected
        assert counted(counts, []) == expected[:1]
        output.append(int(rng.integers(0, 12)))
        counts.commit(output[-1])
