"""Noise of many rows at once is the reference's of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from optimized.ops.sample import philox_words
from reference.sampler import Role, random_words

pytestmark = pytest.mark.ci


@pytest.mark.parametrize(("rows", "count"), [(3, 1), (2, 40001), (257, 131)])
def test_noise_of_many_rows_and_wide_ones_is_the_references(rows: int, count: int, rng: np.random.Generator) -> None:
    seed, position = rng.integers(0, 2**64, rows, dtype=np.uint64), rng.integers(0, 2**32, rows)
    role, sample = rng.integers(0, 4, rows), rng.integers(0, 9, rows)
    keys, positions, samples, roles = map(torch.from_numpy, (seed.view(np.int64), position, sample, role))
    found = philox_words(keys, positions, samples, roles, count)
    for r in range(rows):
        expected = random_words(count, int(seed[r]), int(position[r]), Role(int(role[r])), int(sample[r]))
        assert np.array_equal(found[r].numpy(), expected)
