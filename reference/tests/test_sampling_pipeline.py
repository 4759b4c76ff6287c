"""The whole way from logits to a token against a brute-force oracle, its pinned order, and its edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from reference import adjustments, logprobs, sampler
from reference.adjustments import Context
from reference.spec.errors import RequestError
from reference.spec.outputs import Logprob
from reference.spec.sampling import SamplingParams
from reference.tests import oracle

pytestmark = pytest.mark.ci


def random_params(rng: np.random.Generator, vocab: int) -> SamplingParams:
    """Any mixture of options; values on the grid of the logits, so that adjustments make ties too."""
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
        top_k=int(rng.choice([0, 1, 2, 5, 1000])),
        top_p=float(rng.choice([1.0, 0.95, 0.61, 0.3, 1e-9])),
        min_p=float(rng.choice([0.0, 0.0, 0.07, 0.4, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 2.0, 0.5])),
        frequency_penalty=float(rng.choice([0.0, 0.5, -1.0])),
        presence_penalty=float(rng.choice([0.0, 1.0, -0.5])),
        logit_bias={int(v): float(rng.choice([-100, -1, 0.5, 3])) for v in rng.integers(0, vocab, 2)},
        min_tokens=int(rng.choice([0, 3])),
    )


@pytest.mark.parametrize("ties", [False, True])
def test_the_law_of_a_row_is_the_oracles(ties: bool, rng: np.random.Generator) -> None:
    for _ in range(250):
        vocab = int(rng.integers(2, 24))
        logits = rng.normal(size=vocab) * 2
        logits = np.round(logits) if ties else logits
        logits[rng.random(vocab) < 0.1] = -math.inf
        logits[0] = 1.0
        params = random_params(rng, vocab)
        prompt, output = (rng.integers(0, vocab, size=int(rng.integers(0, 5))).tolist() for _ in range(2))
        context = Context(prompt, output, ends={vocab - 1})
        banned = context.ends if len(output) < params.min_tokens else ()
        expected = oracle.law(logits.tolist(), params, prompt, output, banned)
        row = sampler.processed(torch.from_numpy(logits), params, context)
        if sampler.is_greedy(params):
            assert expected == {sampler.lowest_argmax(row): 1.0}
            continue
        found = {v: p for v, p in enumerate(torch.softmax(row, -1).tolist()) if row[v] > -math.inf}
        assert found.keys() == expected.keys()
        assert found == pytest.approx(expected, abs=1e-13)


def test_penalties_come_after_the_bias_and_in_their_order() -> None:
    logits = torch.tensor([1.0, -1.0, 4.0, 0.0], dtype=torch.float64)
    params = SamplingParams(
        logit_bias={0: -2.0}, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, temperature=0
    )
    row = sampler.processed(logits, params, Context(prompt=[0, 1], output=[2, 2, 3]))
    assert row.tolist() == [-2.0, -2.0, 4 / 2 - 0.5 * 2 - 0.25, 0.0 - 0.5 - 0.25]


def test_frequency_and_presence_see_the_output_alone() -> None:
    logits = torch.zeros(3, dtype=torch.float64)
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=1.0)
    assert sampler.adjusted(logits, params, Context(prompt=[0, 1])).tolist() == [0, 0, 0]
    assert sampler.adjusted(logits, params, Context(prompt=[0], output=[1])).tolist() == [0, -2, 0]


def test_masks_come_after_the_bias() -> None:
    logits = torch.zeros(3, dtype=torch.float64)
    params = SamplingParams(logit_bias={0: 100.0, 1: 100.0}, min_tokens=1, temperature=0)
    allowed = torch.tensor([False, True, True])
    context = Context(ends={1}, grammar=lambda output: allowed)
    assert sampler.draw(logits, params, seed=0, position=0, context=context).token == 2


def test_a_masked_token_stays_masked_under_every_adjustment() -> None:
    logits = torch.tensor([-math.inf, 0.0], dtype=torch.float64)
    params = SamplingParams(logit_bias={0: 100.0}, repetition_penalty=0.1, frequency_penalty=-2, presence_penalty=-2)
    row = sampler.processed(logits, params, Context(prompt=[0], output=[0]))
    assert row.tolist() == [-math.inf, 0.0]


def test_one_token_that_is_left_is_certain(seed: int) -> None:
    logits = torch.tensor([3.0, 1.0, 2.0])
    context = Context(grammar=lambda output: torch.tensor([False, True, False]))
    for temperature in (0.0, 1e-4, 1.0, 1e300):
        drawn = sampler.draw(logits, SamplingParams(temperature=temperature), seed=seed, position=1, context=context)
        assert drawn.token == 1
        assert logprobs.report(drawn.row, 1, 3) == {1: Logprob(0.0, 1)}


def test_top_k_of_one_is_greedy(rng: np.random.Generator) -> None:
    for position in range(50):
        logits = torch.from_numpy(rng.normal(size=12).round())
        tokens = {
            sampler.draw(logits, params, seed=1, position=position).token
            for params in (SamplingParams(top_k=1), SamplingParams(temperature=0), SamplingParams(temperature=9e-6))
        }
        assert len(tokens) == 1


def test_a_top_k_above_the_vocabulary_is_off(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(size=12))
    rows = [sampler.processed(logits, SamplingParams(top_k=k), Context()) for k in (0, 12, 13, 2**31 - 1)]
    assert all(torch.equal(row, rows[0]) for row in rows)


def test_tiny_temperatures_keep_finite_rows(seed: int) -> None:
    logits = torch.tensor([-1e30, 88.0, 88.0, 1e4, -math.inf, 0.0], dtype=torch.float64)
    for temperature in (1e-5, 1e-4, 0.009):
        row = sampler.processed(logits, SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1), Context())
        assert not torch.isnan(row).any()
        assert sampler.draw(logits, SamplingParams(temperature=temperature), seed=seed, position=0).token == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_logit_is_refused_even_where_a_mask_would_hide_it(bad: float) -> None:
    logits = torch.tensor([0.0, bad, 1.0], dtype=torch.float64)
    context = Context(grammar=lambda output: torch.tensor([True, False, True]))
    for temperature in (0, 1):
        with pytest.raises(RequestError, match="logits hold 1"):
            sampler.draw(logits, SamplingParams(temperature=temperature), seed=0, position=0, context=context)


def test_padding_of_the_vocabulary_is_masked_before_everything() -> None:
    logits = torch.tensor([[0.0, 1.0, 9.0, math.nan]], dtype=torch.float64)
    row = adjustments.mask_padding(logits, 2)[0]
    drawn = sampler.draw(row, SamplingParams(temperature=0), seed=0, position=0)
    assert drawn.token == 1
    assert drawn.logprob == pytest.approx(1 - math.log(1 + math.e), abs=1e-7)
    assert logprobs.report(row, 1, 4).keys() == {0, 1}


def test_processed_logprobs_are_of_what_was_drawn_from() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64))
    drawn = sampler.draw(logits, SamplingParams(top_k=2, logit_bias={0: -100}), seed=0, position=0)
    entry = logprobs.report(drawn.row, 1, 4)
    assert list(entry) == [1, 2]
    assert [entry[t].rank for t in (1, 2)] == [1, 2]
    assert entry[1].logprob == pytest.approx(math.log(0.6), abs=1e-7)
    assert logprobs.report(logits, 1, 0) == {1: Logprob(float(np.float32(math.log(0.3))), 2)}
