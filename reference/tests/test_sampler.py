"""Laws of the sampler: the generator's known answers, the filters against brute force, and the law of the draws."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from reference import sampler
from reference.adjustments import Context, Grammar
from reference.sampler import Role
from reference.spec.errors import RequestError
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci

SEED = 0x0123456789ABCDEF
ONES = 0xFFFFFFFF
PHILOX_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
ROLE_ANSWERS = {
    Role.TARGET: "60d90047 2827dcf9 377ea6ee 0cca88a2 463f9bc8",
    Role.DRAFT: "855a5df1 425715c3 12d22138 84949d54 e0cff381",
    Role.ACCEPT: "3dc45f01",
    Role.RESIDUAL: "7f6d5b08",
}


@dataclass
class Row:
    """One row of logits with its brute-force ranking."""

    logits: torch.Tensor

    def order(self) -> list[int]:
        return sorted(range(len(self.logits)), key=lambda i: (-float(self.logits[i]), i))

    def kept(self, filtered: torch.Tensor) -> set[int]:
        return {i for i, z in enumerate(filtered.tolist()) if z != -math.inf}


def rows(rng: np.random.Generator, count: int) -> list[Row]:
    """Rows of 1 to 40 logits; half of them on a coarse grid, so that ties are common."""
    made = []
    for i in range(count):
        logits = torch.from_numpy(rng.normal(size=rng.integers(1, 41)) * 3)
        made.append(Row(logits.round() if i % 2 else logits))
    return made


def only(*allowed: int) -> Grammar:
    """A grammar that always allows these ids, of three or four."""
    return lambda output: torch.tensor([token in allowed for token in range(4 if 3 in allowed else 3)])


@pytest.mark.parametrize(("counter", "key", "answer"), PHILOX_ANSWERS)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], answer: str) -> None:
    words = sampler.philox4x32(np.array(counter, dtype=np.uint32), key)
    assert " ".join(f"{word:08x}" for word in words) == answer


@pytest.mark.parametrize("role", list(Role))
def test_words_are_keyed_by_seed_position_role_and_sample(role: Role) -> None:
    answer = [int(word, 16) for word in ROLE_ANSWERS[role].split()]
    assert sampler.random_words(5, SEED, 7, role, 0)[: len(answer)].tolist() == answer
    others = [(SEED + 1, 7, role, 0), (SEED ^ 1 << 63, 7, role, 0), (SEED, 8, role, 0), (SEED, 7, role, 1)]
    for other in others:
        assert sampler.random_words(1, *other)[0] != answer[0]


def test_a_word_becomes_the_documented_noise() -> None:
    word = np.array([0x60D90047], dtype=np.uint32)
    assert sampler.uniforms(word)[0] == 0.3783111738739535
    assert sampler.exponentials(word)[0] == 0.4753155909646372
    assert -np.log(sampler.exponentials(word))[0] == pytest.approx(0.7437762935339963, abs=1e-15)


def test_a_draft_is_tested_with_the_word_of_its_own_role() -> None:
    noise, u = sampler.Noise(SEED), (0x3DC45F01 + 0.5) / 2**32
    assert [noise.accepts(7, target, 1.0) for target in (u, np.nextafter(u, 1))] == [False, True]
    assert [noise.accepts(7, 0.25 * target, 0.25) for target in (u, np.nextafter(u, 1))] == [False, True]
    assert noise.accepts(7, 0.5, 0.5) and not noise.accepts(7, 0.0, 0.5)
    row = torch.zeros(5, dtype=torch.float64)
    for role in Role:
        words = sampler.random_words(5, SEED, 7, role, 3)
        assert sampler.Noise(SEED, 3).draws(row, 7, role) == sampler.gumbel_argmax(row, words)


def test_noise_is_finite_at_both_ends() -> None:
    ends = np.array([0, ONES], dtype=np.uint32)
    assert np.isfinite(np.log(sampler.exponentials(ends))).all()
    assert -np.log(sampler.exponentials(ends))[0] == pytest.approx(22.87, abs=0.01)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    long = sampler.random_words(41, SEED, 3, Role.TARGET, 2)
    for size in range(1, 41):
        assert sampler.random_words(size, SEED, 3, Role.TARGET, 2).tolist() == long[:size].tolist()


def test_top_k_keeps_exactly_k_by_logit_then_id(rng: np.random.Generator) -> None:
    for row, k in itertools.product(rows(rng, 40), (1, 2, 5, 39, 40, 41)):
        assert row.kept(sampler.keep_top_k(row.logits, k)) == set(row.order()[:k])


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_off(off: int, rng: np.random.Generator) -> None:
    row = rows(rng, 1)[0]
    assert torch.equal(sampler.keep_top_k(row.logits, off), row.logits)


def test_top_p_keeps_while_the_mass_strictly_before_is_below_p(rng: np.random.Generator) -> None:
    for row, p in itertools.product(rows(rng, 40), (1e-9, 0.1, 0.5, 0.9, 0.999)):
        weights = {i: math.exp(float(row.logits[i] - row.logits.max())) for i in row.order()}
        total, mass, expected = sum(weights.values()), 0.0, set()
        for i in row.order():
            if mass / total < p:
                expected.add(i)
            mass += weights[i]
        assert row.kept(sampler.keep_top_p(row.logits, p)) == expected


def test_top_p_drops_the_token_that_begins_exactly_at_p() -> None:
    halves = torch.log(torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64))
    assert Row(halves).kept(sampler.keep_top_p(halves, 0.5)) == {1}
    assert Row(halves).kept(sampler.keep_top_p(halves, 0.5000001)) == {0, 1}


def test_top_p_is_renormalised_on_what_top_k_kept() -> None:
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64))
    params = SamplingParams(top_k=2, top_p=0.55)
    assert Row(logits).kept(sampler.filtered(logits, params)) == {0}  # 0.4 / 0.7 is over 0.55, 0.4 alone is not


def test_min_p_is_relative_to_the_best(rng: np.random.Generator) -> None:
    for row, p in itertools.product(rows(rng, 40), (0.05, 0.5, 1.0)):
        best = float(row.logits.max())
        expected = {i for i, z in enumerate(row.logits.tolist()) if z >= best + math.log(p)}
        assert row.kept(sampler.keep_min_p(row.logits, p)) == expected


def test_temperature_comes_before_the_filters() -> None:
    logits = torch.log(torch.tensor([0.6, 0.4], dtype=torch.float64))
    assert Row(logits).kept(sampler.filtered(logits, SamplingParams(temperature=0.1, top_p=0.7))) == {0}
    assert Row(logits).kept(sampler.filtered(logits, SamplingParams(temperature=1.0, top_p=0.7))) == {0, 1}


def test_temperature_zero_is_the_lowest_greatest_id() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, -torch.inf])
    greedy = SamplingParams(temperature=0, top_k=2, top_p=0.1, min_p=0.9)
    assert sampler.draw(logits, greedy, seed=SEED, position=0).token == 1


def test_a_tiny_temperature_does_not_overflow() -> None:
    logits = torch.tensor([-300.0, 1e30, 40.0, -torch.inf], dtype=torch.float64)
    drawn = sampler.draw(logits, SamplingParams(temperature=2e-5), seed=SEED, position=0)
    assert (drawn.token, drawn.logprob, drawn.rank) == (1, 0.0, 1)


def test_logprobs_are_raw_and_rank_counts_strictly_greater() -> None:
    logits = torch.tensor([2.0, 5.0, 5.0, 1.0], dtype=torch.float64)
    drawn = sampler.draw(logits, SamplingParams(temperature=0), seed=0, position=0, context=Context(grammar=only(0, 3)))
    assert drawn.token == 0
    assert drawn.rank == 3
    assert drawn.logprob == float(torch.log_softmax(logits, -1)[0].float())
    assert sampler.rank(logits, 2) == 1
    assert sampler.top_tokens(logits, 3) == [1, 2, 0]


@pytest.mark.parametrize(
    "bad", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]], ids=["nan", "inf", "all masked"]
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_that_cannot_be_drawn_from_is_refused(bad: list[float], temperature: float) -> None:
    with pytest.raises(RequestError):
        sampler.draw(torch.tensor(bad), SamplingParams(temperature=temperature), seed=0, position=0)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_dead_end_of_the_grammar_is_refused(temperature: float) -> None:
    with pytest.raises(RequestError, match="masked"):
        sampler.draw(
            torch.zeros(3), SamplingParams(temperature=temperature), seed=0, position=0, context=Context(grammar=only())
        )


def test_draws_follow_the_filtered_softmax(seed: int) -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5, 2.0, -torch.inf], dtype=torch.float64)
    params = SamplingParams(temperature=0.8, top_k=4)
    expected = torch.softmax(sampler.filtered(logits, params), -1).numpy()
    count = 20000
    filtered = sampler.filtered(logits, params)
    tokens = [sampler.gumbel_argmax(filtered, sampler.random_words(6, seed, i, Role.TARGET, 0)) for i in range(count)]
    seen = np.bincount(tokens, minlength=6)
    assert not seen[expected == 0].any()
    live = expected > 0
    chi_square = (((seen - count * expected) ** 2)[live] / (count * expected)[live]).sum()
    assert chi_square < 16.3  # three degrees of freedom: exceeded once in a thousand seeds


def test_seed_position_and_sample_change_the_draw(seed: int) -> None:
    flat = torch.zeros(1000)
    params = SamplingParams()
    settings = [(seed, 5, 0), (seed + 1, 5, 0), (seed, 6, 0), (seed, 5, 1)]
    drawn = [sampler.draw(flat, params, seed=s, position=p, sample_index=n).token for s, p, n in settings]
    assert len(set(drawn)) == len(drawn)
    assert drawn[0] == sampler.draw(flat, params, seed=seed, position=5).token
