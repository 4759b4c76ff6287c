"""Both samplers choose the same token from the same row: random rows, with and without ties, under random parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from optimized.ops import sample as engine_sampling
from reference import sampler
from reference.spec import SamplingParams

pytestmark = pytest.mark.ci

ROWS = 64


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Any mixture of filters; a quarter of the rows is greedy."""
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 2.5])),
        top_k=int(rng.choice([0, 1, 3, 50, 10_000])),
        top_p=float(rng.choice([1.0, 0.999, 0.9, 0.3, 1e-6])),
        min_p=float(rng.choice([0.0, 0.0, 0.02, 0.5, 1.0])),
        seq_seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
    )


def engine_rows(params: list[SamplingParams], positions: list[int], samples: list[int]) -> engine_sampling.SamplingRows:
    """The parameters as the engine's operation takes them."""
    seeds = np.array([p.seq_seed for p in params], dtype=np.uint64).view(np.int64)
    return engine_sampling.SamplingRows(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64),
        top_k=torch.tensor([p.top_k for p in params]),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64),
        min_p=torch.tensor([p.min_p for p in params], dtype=torch.float64),
        seed=torch.from_numpy(seeds),
        position=torch.tensor(positions),
        sample=torch.tensor(samples),
    )


@pytest.mark.parametrize("vocab", [1, 5, 257, 2048])
@pytest.mark.parametrize("grid", [0.0, 0.5], ids=["distinct", "ties"])
def test_one_batch_of_the_engine_equals_the_reference_row_by_row(
    vocab: int, grid: float, rng: np.random.Generator
) -> None:
    logits = torch.from_numpy(rng.normal(size=(ROWS, vocab)) * 4)
    logits = (logits / grid).round() * grid if grid else logits
    logits[rng.random((ROWS, vocab)) < 0.1] = -torch.inf
    logits[:, 0] = 0.0
    params = [random_params(rng) for _ in range(ROWS)]
    positions, samples = rng.integers(0, 4096, ROWS).tolist(), rng.integers(0, 8, ROWS).tolist()
    found = engine_sampling.sample(logits, engine_rows(params, positions, samples)).tolist()
    expected = [
        sampler.draw(row, p, seed=p.seq_seed or 0, position=position, sample_index=index).token
        for row, p, position, index in zip(logits, params, positions, samples, strict=True)
    ]
    assert found == expected


def test_raw_logprobs_are_the_same_bits(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(size=(ROWS, 2048)) * 4)
    found = engine_sampling.log_probabilities(logits).float()
    expected = torch.stack([sampler.raw_logprobs(row) for row in logits])
    assert torch.equal(found, expected)


@pytest.mark.parametrize("seed64", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("role", list(sampler.Role))
def test_noise_is_the_same_words(seed64: int, role: sampler.Role) -> None:
    signed = torch.tensor([seed64 - 2**64 if seed64 >= 2**63 else seed64])
    found = engine_sampling.philox_words(signed, torch.tensor([9]), torch.tensor([2]), int(role), 101)
    assert found[0].tolist() == sampler.random_words(101, seed64, 9, role, 2).tolist()
