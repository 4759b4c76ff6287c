"""Blocks verified on a CUDA device commit what they commit on the CPU, launched and drafted without a wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from equivalence.tests.test_verification_agrees import RULES, Case, random_case, verified
from optimized.engine.verifier import Verifier
from optimized.ops.verification_lengths import select_lengths, survivals
from optimized.worker.transfer import no_waits
from reference.spec.sampling import LogprobsMode
from reference.spec.speculation import Verification

pytestmark = pytest.mark.gpu

VOCAB, NEXTN = 70, 3


def random_cases(rng: np.random.Generator, rule: Verification, nextn: int) -> list[Case]:
    return [random_case(rng, VOCAB, VOCAB - 2, rule, nextn) for _ in range(40)]


@pytest.mark.parametrize("rule", RULES)
def test_blocks_commit_what_they_commit_on_the_cpu(rule: Verification, seed: int) -> None:
    for trial in range(8):
        cases = random_cases(np.random.default_rng(seed + trial), rule, NEXTN)
        mode: LogprobsMode = "raw_logprobs" if trial % 2 else "processed_logprobs"
        expected, found = (
            verified(np.random.default_rng(trial), cases, rule, 1.0, NEXTN, mode, device) for device in ("cpu", "cuda")
        )
        for theirs, ours in zip(expected, found, strict=True):
            assert [(one.token, one.error) for one in ours] == [(one.token, one.error) for one in theirs]
            for one, other in zip(ours, theirs, strict=True):
                assert [(t, e.rank) for t, e in one.logprobs.items()] == [
                    (t, e.rank) for t, e in other.logprobs.items()
                ]
                assert one.logprob == pytest.approx(other.logprob, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_drafts_are_those_of_the_cpu(rule: Verification, rng: np.random.Generator) -> None:
    sequences = [case.sequence for case in random_cases(rng, rule, 0)]
    positions = torch.tensor([one.position for one in sequences])
    logits = torch.from_numpy(rng.normal(0, 2, (5, len(sequences), VOCAB)))
    tokens = []
    for device in ("cpu", "cuda"):
        here, rows = positions.to(device), logits.to(device)
        with no_waits():
            choose = Verifier(VOCAB - 2, "raw_logprobs", rule, nextn=NEXTN).chooser(sequences, here)
            tokens.append(torch.stack([choose(rows[slot], slot) for slot in range(5)]))
    assert torch.equal(tokens[0], tokens[1].cpu())


def test_lengths_are_those_of_the_cpu(rng: np.random.Generator) -> None:
    confidence = torch.from_numpy(rng.normal(0, 3, (64, 5)).round(1))
    most, temperatures = torch.from_numpy(rng.integers(0, 6, 64)), torch.from_numpy(rng.uniform(0.5, 2, 5))
    expected = survivals(confidence, temperatures)
    device = torch.device("cuda")
    inputs = confidence.to(device), temperatures.to(device), most.to(device), expected.to(device)
    with no_waits():
        survival = survivals(inputs[0], inputs[1])
        lengths = [select_lengths(inputs[3], inputs[2], budget) for budget in (0, 1, 50, 400)]
    assert torch.equal(survival.cpu(), expected)
    for budget, found in zip((0, 1, 50, 400), lengths, strict=True):
        assert torch.equal(found.cpu(), select_lengths(expected, most, budget))
