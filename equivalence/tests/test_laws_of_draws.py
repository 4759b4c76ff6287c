"""The law of what the engine draws and verifies: a million draws a setting against an oracle in plain Python.

Chi-squares are judged together: the least p-value times the number of tests is above 1e-3. The ratio test is judged
exactly as well, by counting the random words that keep a draft.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from optimized.engine.draft_chooser import DraftChooser
from optimized.engine.verifier import BlockRows, Verifier
from optimized.ops.sample import DRAFT, RESIDUAL, TARGET, SamplingRows, draw, process_logits
from optimized.ops.verify import judge_drafts
from reference import verification
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import Verification
from reference.tests import oracle

DRAWS = 1_000_000

CHUNK = 200_000

LEAST = 1e-3

WORDS = 2**32

LOGITS = [1.0, 2.0, 2.0, 0.5, 2.0, -1.0, 0.5, -math.inf, 1.9, 0.5]

MIXES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.4},
    "hot": {"temperature": 2.5},
    "top_k in a tie": {"top_k": 2},
    "top_k at the end of a tie": {"top_k": 3},
    "top_k in a later tie": {"top_k": 6},
    "top_p in a tie": {"top_p": 0.5},
    "top_p of almost all": {"top_p": 0.97, "temperature": 1.5},
    "min_p at a tie": {"min_p": math.exp(-1.5)},
    "min_p": {"min_p": 0.3, "temperature": 2.0},
    "top_p of what top_k kept": {"top_k": 4, "top_p": 0.6},
    "all": {"temperature": 1.3, "top_k": 8, "top_p": 0.9, "min_p": 0.15},
}


FEW_MIXES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.6, "top_p": 0.8, "min_p": 0.1},
]


def chi_square(counts: list[int], law: dict[int, float]) -> float:
    """The p-value of the counts of each token; 0 if one outside the law was drawn."""
    total = sum(counts)
    if {token for token, count in enumerate(counts) if count} - law.keys():
        return 0.0
    if len(law) == 1:
        return 1.0
    statistic = sum((counts[token] - total * p) ** 2 / (total * p) for token, p in law.items())
    half = torch.tensor([(len(law) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def rows(positions: torch.Tensor, role: int | torch.Tensor, seed: int, params: SamplingParams) -> SamplingRows:
    """Parameters of rows that are alike but for their positions [S]."""

    def alike(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((len(positions),), value, dtype=dtype)

    return SamplingRows(
        temperature=alike(params.temperature, torch.float64),
        top_k=alike(params.top_k, torch.int64),
        top_p=alike(params.top_p, torch.float64),
        log_min_p=alike(math.log(params.min_p) if params.min_p else -math.inf, torch.float64),
        seed=alike(seed, torch.int64),
        position=positions,
        sample=alike(0, torch.int64),
        role=alike(role, torch.int64) if isinstance(role, int) else role,
    )


@pytest.mark.ci
def test_the_p_value_is_that_of_tables() -> None:
    law = {0: 0.5, 1: 0.5}
    assert chi_square([500, 500], law) == 1.0
    assert chi_square([531, 469], law) == pytest.approx(0.0499, abs=1e-4)
    assert chi_square([500, 499, 1], law) == 0.0
    assert chi_square([300, 300, 400], {0: 0.3, 1: 0.35, 2: 0.35}) == pytest.approx(math.exp(-100 / 14), rel=1e-9)


@pytest.mark.slow
def test_a_million_draws_of_each_mix_follow_the_oracle(seed: int) -> None:
    logits = torch.tensor([LOGITS], dtype=torch.float64)
    found = {}
    for number, (name, mix) in enumerate(MIXES.items()):
        params, counts = SamplingParams(**mix), torch.zeros(len(LOGITS), dtype=torch.int64)
        for first in range(0, DRAWS, CHUNK):
            parameters = rows(torch.arange(first, first + CHUNK), TARGET, seed + number, params)
            drawn = draw(process_logits(logits.expand(CHUNK, -1), parameters), parameters)
            counts += torch.bincount(drawn, minlength=len(LOGITS))
        found[name] = chi_square(counts.tolist(), oracle.law(LOGITS, params))
    assert min(found.values()) * len(found) > LEAST, found


Table = torch.Tensor
"""[V, V] float64, logits after each token."""


def table(seed: int, size: int) -> Table:
    """Random logits on a coarse grid, so that ties are common."""
    drawn = np.random.default_rng(seed).normal(size=(size, size)) * 2
    return torch.from_numpy(drawn.round() / 2)


def verified_blocks(
    rule: Verification, target: Table, drafts: Table, params: SamplingParams, seed: int, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The engine's verifier on CHUNK blocks of two drafts after token 0: committed tokens [B, 3], accepted [B]."""
    count, nextn = CHUNK, 2
    first = torch.arange(count) * 4
    chooser = DraftChooser(
        rows(first, TARGET if rule == "coupled" else DRAFT, seed, params),
        None,
        len(target),
        nextn,
        keep_rows=rule == "ratio",
    )
    ids = [torch.zeros(count, dtype=torch.int64)]
    for slot in range(nextn):
        ids.append(chooser(drafts[ids[-1]], slot))
    before = torch.stack(ids, dim=1)  # [B, 3]
    judged = torch.tensor([True, True, False]).repeat(count)  # [S]
    role = torch.where(judged & (rule == "ratio"), RESIDUAL, TARGET)  # [S]
    block_rows = BlockRows(
        blocks=[],
        sampling=rows((first[:, None] + torch.arange(3)).flatten(), role, seed, params),
        drafts=torch.cat((before[:, 1:], torch.full((count, 1), -1)), dim=1).flatten(),
        grid=torch.arange(3 * count).view(count, 3),
        adjustments=None,
        words=None,
        judged=judged.nonzero()[:, 0] if rule == "ratio" else torch.zeros(0, dtype=torch.int64),
        proposals=torch.arange(2 * count) if rule == "ratio" else torch.zeros(0, dtype=torch.int64),
        reported=torch.zeros(0, dtype=torch.int64),
        most=0,
    )
    verifier = Verifier(len(target), "raw_logprobs", rule, alpha, nextn)
    verified = verifier.launch(target[before.flatten()], block_rows, chooser.rows)
    return verified.tokens, verified.accepted


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("mix", FEW_MIXES)
def test_every_committed_token_follows_the_target(rule: Verification, mix: dict[str, Any], seed: int) -> None:
    size, params = 5, SamplingParams(**mix)
    target, drafts = table(seed, size), table(seed + 1, size)
    counts = torch.zeros(3, size, size, dtype=torch.int64)  # [place, token before, token]
    kept = 0
    for part in range(DRAWS // CHUNK):
        tokens, accepted = verified_blocks(rule, target, drafts, params, seed + part, 1.0)
        before = torch.cat((torch.zeros(CHUNK, 1, dtype=torch.int64), tokens[:, :2]), dim=1)  # [B, 3]
        for place in range(3):
            reached = accepted >= place
            pairs = before[reached, place] * size + tokens[reached, place]
            counts[place] += torch.bincount(pairs, minlength=size * size).view(size, size)
        kept += int((accepted >= 1).sum())
    laws = [oracle.law(target[token].tolist(), params) for token in range(size)]
    found = [
        chi_square(counts[place, token].tolist(), laws[token])
        for place, token in itertools.product(range(3), range(size))
        if int(counts[place, token].sum()) > 1000
    ]
    assert len(found) > 3
    assert min(found) * len(found) > LEAST, found
    proposed = oracle.law(drafts[0].tolist(), params)
    if rule == "ratio":
        overlap = sum(min(p, laws[0].get(token, 0.0)) for token, p in proposed.items())
        assert kept / DRAWS == pytest.approx(overlap, abs=5 * (overlap * (1 - overlap) / DRAWS) ** 0.5)


def words_kept(target: torch.Tensor, proposal: torch.Tensor, draft: int, alpha: float) -> tuple[int, torch.Tensor]:
    """How many of the 2^32 random words keep a draft, and the law [V] of what replaces it."""

    def judged(word: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = torch.tensor([draft]), torch.tensor([word])
        return judge_drafts(target[None], proposal[None], *at, alpha)

    refused = least(lambda word: word == WORDS or not bool(judged(word)[0][0]), WORDS)
    return refused, torch.softmax(judged(0)[1][0], 0)  # [V]


def least(holds: Callable[[int], bool], most: int) -> int:
    """The least of 0..most for which something holds, that holds from there on."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


@pytest.mark.ci
@pytest.mark.parametrize("alpha", [1.0, verification.PENALISED])
def test_the_ratio_test_has_the_law_of_the_target_by_enumeration(alpha: float, seed: int) -> None:
    """Over every draft, every random word and every token of the residual: off by a word's width, or by alpha's."""
    for number in range(40):
        size = 2 + number % 4
        rng = np.random.default_rng(seed + number)
        target, proposal = (torch.from_numpy((rng.normal(size=size) * 2).round() / 2) for _ in range(2))
        if number % 3 == 0:
            target[int(rng.integers(size))] = -math.inf
        p, q = torch.softmax(target, 0), torch.softmax(proposal, 0)
        law = torch.zeros(size, dtype=torch.float64)
        for draft in range(size):
            words, residual = words_kept(target, proposal, draft, alpha)
            law[draft] += q[draft] * words / WORDS
            law += q[draft] * (1 - words / WORDS) * residual
        assert float((law - p).abs().max()) < (1e-9 if alpha == 1.0 else 1 - alpha)
