"""Frequencies of 100 000 draws against the oracle's law: filters with ties, and both verification rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from reference import sampler, verification
from reference.adjustments import Context
from reference.sampler import Role
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import Verification
from reference.tests import oracle
from reference.verification import Proposal

pytestmark = pytest.mark.slow

DRAWS = 100_000
LOGITS = [1.0, 2.0, 2.0, 0.5, 2.0, -1.0, 0.5, -math.inf]
DRAFT_LOGITS = [2.0, 1.0, 2.5, -0.5, 0.0, 1.0, 0.5, 1.0]
#: Exceeded once in 1e5 seeds by a chi-square with so many degrees of freedom.
LIMITS = {2: 23.1, 3: 25.9, 4: 28.5, 5: 30.9, 6: 33.2}
MIXES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top_k in a tie": {"top_k": 4},
    "top_p": {"top_p": 0.8, "temperature": 1.5},
    "min_p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 6, "top_p": 0.9, "min_p": 0.05, "presence_penalty": 0.5, "logit_bias": {0: 1}},
}


class ManyPositions:
    """The sampler's noise for the first positions of one seed, made at once."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._words = {}
        for role in Role:
            counter = np.zeros((DRAWS, (vocab + 3) // 4, 4), dtype=np.uint32)
            counter[:, :, 0] = np.arange(counter.shape[1])
            counter[:, :, 1] = np.arange(DRAWS)[:, None]
            counter[:, :, 2] = role
            self._words[role] = sampler.philox4x32(counter, (seed, 0)).reshape(DRAWS, -1)[:, :vocab]
            assert self._words[role][77].tolist() == sampler.random_words(vocab, seed, 77, role, 0).tolist()

    def draws(self, row: torch.Tensor, position: int, role: Role) -> int:
        return sampler.gumbel_argmax(row, self._words[role][position])

    def accepts(self, position: int, target: float, draft: float) -> bool:
        return float(sampler.uniforms(self._words[Role.ACCEPT][position, :1])[0]) * draft < target


def check_frequencies(tokens: list[int], expected: Mapping[int, float]) -> None:
    """No token outside the law, and a chi-square within its limit."""
    seen = np.bincount(tokens, minlength=len(LOGITS)).tolist()
    assert {v for v, count in enumerate(seen) if count} == expected.keys()
    chi_square = sum((seen[v] - DRAWS * p) ** 2 / (DRAWS * p) for v, p in expected.items())
    assert chi_square < LIMITS[len(expected) - 1]


@pytest.mark.parametrize("mix", MIXES)
def test_draws_follow_the_oracle(mix: str, seed: int) -> None:
    params, context = SamplingParams(**MIXES[mix]), Context(output=[1])
    row = sampler.processed(torch.tensor(LOGITS, dtype=torch.float64), params, context)
    noise = ManyPositions(seed, len(LOGITS))
    tokens = [noise.draws(row, position, Role.TARGET) for position in range(DRAWS)]
    check_frequencies(tokens, oracle.law(LOGITS, params, output=[1]))


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_verified_drafts_follow_the_oracle(rule: Verification, seed: int) -> None:
    params = SamplingParams(temperature=1.2, top_k=5)
    rows = [sampler.processed(torch.tensor(z, dtype=torch.float64), params, Context()) for z in (LOGITS, DRAFT_LOGITS)]
    logits = torch.tensor([LOGITS, LOGITS], dtype=torch.float64)
    noise, tokens = ManyPositions(seed, len(LOGITS)), []
    for position in range(DRAWS):
        draft = noise.draws(rows[1], position, verification.draft_role(rule))
        context = Context(prompt=range(position), ends=frozenset(range(8)))
        proposal = Proposal([draft], [rows[1]])
        tokens.append(verification.verify(rule, logits, proposal, params, context, noise).tokens[0])
    check_frequencies(tokens, oracle.law(LOGITS, params))
