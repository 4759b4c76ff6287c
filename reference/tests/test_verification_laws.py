"""The law of what verification commits is the target's, by enumeration of every draft, test and draw."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from reference import sampler, verification
from reference.adjustments import Context
from reference.sampler import Role
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import Verification
from reference.tests.enumeration import Branches, SharedNoise, distance, law
from reference.verification import Proposal

pytestmark = pytest.mark.ci

EXACT = 1e-12
Rows = Callable[[Context], torch.Tensor]
MIXES: dict[str, dict[str, Any]] = {
    "plain": {},
    "warm": {"temperature": 1.7},
    "filters": {"temperature": 0.8, "top_k": 3, "top_p": 0.9},
    "min_p": {"min_p": 0.4},
    "penalties": {"repetition_penalty": 1.6, "frequency_penalty": 0.7, "presence_penalty": -1.1, "logit_bias": {1: 2}},
    "min_tokens": {"min_tokens": 2},
    "greedy": {"temperature": 0, "frequency_penalty": 1.3},
}


def rows(name: str, vocab: int, ties: bool = False) -> Rows:
    """A random model: logits are a function of its name and the tokens before."""

    def logits(context: Context) -> torch.Tensor:
        seed = zlib.crc32(f"{name}{[*context.prompt, *context.output]}".encode())
        drawn = torch.from_numpy(np.random.default_rng(seed).normal(size=vocab) * 1.5)
        return drawn.round() if ties else drawn

    return logits


def draft(q: Rows, rule: Verification, count: int, params: SamplingParams, context: Context, source: Any) -> Proposal:
    """`count` drafts from a random model, each after the ones before."""
    proposal = Proposal([], [])
    for _ in range(count):
        here = context.after(proposal.tokens)
        row = sampler.processed(q(here), params, here)
        role = verification.draft_role(rule)
        proposal.tokens.append(verification.choose(row, params, here.position, role, source))
        proposal.rows.append(row)
    return proposal


def block(
    p: Rows,
    q: Rows,
    rule: Verification,
    count: int,
    params: SamplingParams,
    context: Context,
    source: Any,
    **options: Any,
) -> verification.Verdict:
    """Draft and verify once."""
    proposal = draft(q, rule, count, params, context, source)
    logits = torch.stack([p(context.after(proposal.tokens[:k])) for k in range(count + 1)])
    return verification.verify(rule, logits, proposal, params, context, source, **options)


def speculated(
    p: Rows, q: Rows, rule: Verification, nextn: int, length: int, params: SamplingParams, start: Context, source: Any
) -> tuple[int, ...]:
    """`length` tokens, or fewer if one of them ends it, by blocks of up to `nextn` drafts."""
    context = start
    while len(context.output) < length and not (context.output and context.output[-1] in context.ends):
        count = min(nextn, length - len(context.output) - 1)
        context = context.after(block(p, q, rule, count, params, context, source).tokens)
    return tuple(context.output)


def plain(p: Rows, length: int, params: SamplingParams, start: Context, source: Any) -> tuple[int, ...]:
    """The same without drafts."""
    context = start
    while len(context.output) < length and not (context.output and context.output[-1] in context.ends):
        row = sampler.processed(p(context), params, context)
        context = context.after([verification.choose(row, params, context.position, Role.TARGET, source)])
    return tuple(context.output)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("vocab", "nextn", "length"), [(4, 1, 2), (3, 2, 3), (2, 3, 4)])
def test_ratio_has_the_law_of_the_target(mix: str, vocab: int, nextn: int, length: int) -> None:
    params, start = SamplingParams(**MIXES[mix]), Context(prompt=[0, 1], ends={1})
    p, q = rows("p", vocab), rows("q", vocab)
    expected = law(lambda source: plain(p, length, params, start, source))
    found = law(lambda source: speculated(p, q, "ratio", nextn, length, params, start, source))
    assert distance(found, expected) < EXACT
    assert sum(found.values()) == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("mix", MIXES)
def test_coupled_gives_the_text_of_the_target_for_every_noise(mix: str, ties: bool) -> None:
    params, start = SamplingParams(**MIXES[mix]), Context(prompt=[0], ends={1})
    p, q = rows("p", 2, ties), rows("q", 2, ties)

    def both(source: Branches) -> tuple[tuple[int, ...], ...]:
        texts = [speculated(p, q, "coupled", nextn, 2, params, start, source) for nextn in (1, 2)]
        return plain(p, 2, params, start, source), *texts

    for texts in law(both, SharedNoise):
        assert texts[1:] == (texts[0],) * 2


def test_coupled_keeps_a_draft_as_often_as_its_formula_says() -> None:
    vocab, count = 4, 100_000
    p, q = (torch.log_softmax(rows(name, vocab)(Context()), -1) for name in "pq")
    counter = np.zeros((count, 4), dtype=np.uint32)
    counter[:, 1] = np.arange(count)
    words = sampler.philox4x32(counter, (7, 0))
    assert words[5].tolist() == sampler.random_words(vocab, 7, 5, Role.TARGET, 0).tolist()
    noise = np.log(sampler.exponentials(words))
    kept = (np.argmax(p.numpy() - noise, 1) == np.argmax(q.numpy() - noise, 1)).mean()
    a, b = p.exp().tolist(), q.exp().tolist()
    formula = sum(1 / sum(max(a[j] / a[i], b[j] / b[i]) for j in range(vocab)) for i in range(vocab))
    assert kept == pytest.approx(formula, abs=4 * (formula * (1 - formula) / count) ** 0.5)


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_greedy_takes_the_argmax_whatever_was_drafted(rule: Verification) -> None:
    params, context = SamplingParams(temperature=0), Context(prompt=[0])
    p = rows("p", 3, ties=True)
    best = plain(p, 3, params, context, None)
    for drafts in itertools.product(range(3), repeat=2):
        logits = torch.stack([p(context.after(drafts[:k])) for k in range(3)])
        verdict = verification.verify(
            rule, logits, Proposal(list(drafts), [logits[0]] * 2), params, context, Branches([])
        )
        assert tuple(verdict.tokens) == best[: verdict.accepted + 1]
        assert verdict.accepted == next((k for k in range(2) if drafts[k] != best[k]), 2)


def test_a_draft_is_kept_with_the_overlap_of_the_two_laws() -> None:
    params, context = SamplingParams(temperature=1.2), Context()
    p, q = rows("p", 4), rows("q", 4)
    kept = law(lambda source: block(p, q, "ratio", 1, params, context, source).accepted)
    laws = [torch.softmax(sampler.processed(model(context), params, context), -1) for model in (p, q)]
    assert kept[1] == pytest.approx(float(torch.minimum(*laws).sum()), abs=EXACT)


def test_a_penalised_residual_is_off_by_its_bound_and_no_more() -> None:
    params, context = SamplingParams(), Context()
    p, q = rows("p", 4), rows("q", 4)
    expected = law(lambda source: plain(p, 1, params, context, source))
    found = law(
        lambda source: tuple(block(p, q, "ratio", 1, params, context, source, alpha=verification.PENALISED).tokens[:1])
    )
    epsilon = 1 - verification.PENALISED
    assert 1e-7 < distance(found, expected) < epsilon
    assert all(expected[y] - epsilon <= found[y] <= (1 + epsilon) * expected[y] for y in expected)


def test_an_empty_residual_is_the_target_and_a_full_one_is_not() -> None:
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    assert torch.equal(verification.residual(p, p + torch.tensor([1e-9, -1e-9, 0.0])), torch.log(p))
    q = torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64)
    assert torch.softmax(verification.residual(p, q), -1).tolist() == [0.0, 1.0, 0.0]


def test_a_certain_draft_is_kept_with_the_probability_of_the_target() -> None:
    context, params = Context(), SamplingParams()
    p = torch.log(torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64))
    certain = Proposal([1], [torch.tensor([-torch.inf, 0.0, -torch.inf], dtype=torch.float64)])
    found = law(lambda s: verification.verify("ratio", p.expand(2, 3), certain, params, context, s).tokens[0])
    assert distance(found, {0: 0.2, 1: 0.3, 2: 0.5}) < EXACT


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_a_stop_token_ends_the_block_without_a_bonus(rule: Verification) -> None:
    p = rows("p", 2)

    def tokens(source: Branches) -> tuple[tuple[int, ...], int]:
        verdict = block(p, p, rule, 1 if rule == "coupled" else 2, SamplingParams(), Context(ends={1}), source)
        return tuple(verdict.tokens), verdict.accepted

    for committed, accepted in law(tokens, SharedNoise if rule == "coupled" else Branches):
        assert 1 not in committed[:-1]
        assert len(committed) == (accepted if committed[accepted - 1 : accepted] == (1,) else accepted + 1)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_a_masked_draft_is_rejected_and_its_row_is_masked_too(rule: Verification, temperature: float) -> None:
    even = torch.tensor([True, False, True])
    context = Context(grammar=lambda output: even if not output else ~even)
    p, drafts = torch.zeros(3, 3, dtype=torch.float64), Proposal([1, 0], [torch.zeros(3, dtype=torch.float64)] * 2)
    params = SamplingParams(temperature=temperature)
    found = law(lambda source: tuple(verification.verify(rule, p, drafts, params, context, source).tokens))
    assert set(found) <= {(0,), (2,)}


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_drafts_and_tests_use_their_own_noise(rule: Verification) -> None:
    used: list[tuple[str, int, int]] = []

    class Watched(Branches):
        def draws(self, row: torch.Tensor, position: int, role: Role) -> int:
            used.append(("draw", position, int(role)))
            return super().draws(row, position, role)

        def accepts(self, position: int, target: float, draft: float) -> bool:
            used.append(("accept", position, int(Role.ACCEPT)))
            return self.pick([1.0, 0.0]) == 1

    context = Context(prompt=[0, 0], output=[1])
    block(rows("p", 3), rows("q", 3), rule, 1, SamplingParams(), context, Watched([0, 0, 1]))
    if rule == "ratio":
        assert used == [("draw", 3, Role.DRAFT), ("accept", 3, Role.ACCEPT), ("draw", 3, Role.RESIDUAL)]
    else:
        assert used[:2] == [("draw", 3, Role.TARGET)] * 2
