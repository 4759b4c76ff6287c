"""Blocks verified many at once commit what the reference commits for each alone; drafts are those of the reference."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from optimized.engine.block import Block
from optimized.engine.door import Request
from optimized.engine.sequence import Sequence
from optimized.engine.verifier import Drawn, Verifier
from optimized.ops import registry
from optimized.ops.verification_lengths import select_lengths, survivals
from optimized.worker.transfer import no_waits
from reference import adjustments, logprobs, verification
from reference.adjustments import Context
from reference.sampler import Noise
from reference.spec.errors import RequestError
from reference.spec.sampling import LogprobsMode, SamplingParams
from reference.spec.speculation import Verification
from reference.verification import Proposal, Verdict

pytestmark = pytest.mark.ci

RULES: tuple[Verification, ...] = ("coupled", "ratio")
FAULTS = (float("nan"), float("inf"), -float("inf"))


class Language:
    """Which ids may follow an output: a random table by the last id and the length. A matcher that needs no grammar."""

    def __init__(self, rng: np.random.Generator, vocab_size: int, output: list[int]) -> None:
        self._table = torch.from_numpy(rng.random((4, vocab_size, vocab_size)) < 0.6)
        self._output = output

    def allowed(self, output: SequenceOf[int]) -> torch.Tensor:
        return self._table[len(output) % 4, output[-1] if output else 0]

    @property
    def words(self) -> torch.Tensor:
        return self.words_through(())[0]

    def words_through(self, drafts: SequenceOf[int]) -> torch.Tensor:
        rows = [self.allowed([*self._output, *drafts[:k]]) for k in range(len(drafts) + 1)]
        bits = np.packbits(torch.stack(rows).numpy(), axis=1, bitorder="little")
        padded = np.pad(bits, ((0, 0), (0, -bits.shape[1] % 4)))
        return torch.from_numpy(padded.view(np.int32))


@dataclass
class Case:
    """One block of one sequence, with everything that the reference asks for."""

    sequence: Sequence
    context: Context
    logits: torch.Tensor  # [L+1, V]
    drafts: list[int]
    rows: list[torch.Tensor]  # of all slots, [V] each
    noise: Noise = field(init=False)

    def __post_init__(self) -> None:
        self.noise = Noise(self.sequence.request.seed, self.sequence.sample_index)

    @property
    def params(self) -> SamplingParams:
        return self.sequence.request.params

    def verdict(self, rule: Verification, alpha: float, count: int, logits: torch.Tensor | None = None) -> Verdict:
        """The reference's, of the first `count` drafts."""
        proposal = Proposal(self.drafts[:count], self.rows[:count])
        rows = self.logits if logits is None else logits
        return verification.verify(rule, rows[: count + 1], proposal, self.params, self.context, self.noise, alpha)


def random_params(rng: np.random.Generator, vocab_size: int) -> dict[str, Any]:
    """Every parameter that reaches a row, each off half of the time."""
    settings = {
        "temperature": rng.choice([0.5, 1.0, 1.7]) if rng.random() < 0.75 else 0.0,
        "top_k": int(rng.integers(1, vocab_size + 2)),
        "top_p": float(rng.choice([0.3, 0.8, 0.95])),
        "min_p": float(rng.choice([0.02, 0.2])),
        "repetition_penalty": float(rng.choice([0.7, 1.6])),
        "frequency_penalty": float(rng.choice([-0.9, 0.6])),
        "presence_penalty": float(rng.choice([-0.9, 0.6])),
        "logit_bias": {int(token): float(rng.normal()) for token in rng.integers(0, vocab_size, 3)},
        "min_tokens": int(rng.integers(1, 8)),
        "stop_token_ids": rng.integers(0, vocab_size, 1 + vocab_size // 8).tolist(),
        "logprobs": int(rng.integers(0, 5)),
    }
    kept = {name: value for name, value in settings.items() if name == "temperature" or rng.random() < 0.5}
    return {**kept, "temperature": float(settings["temperature"]), "max_tokens": None}


def random_case(rng: np.random.Generator, vocab_size: int, num_ids: int, rule: Verification, nextn: int) -> Case:
    """A sequence of some age with a block of 0..nextn drafts, most of them likely to be kept."""
    params = SamplingParams(**random_params(rng, num_ids))
    prompt: Any = rng.integers(0, num_ids, rng.integers(1, 6)).tolist()
    plain = params.repetition_penalty == 1 and not params.frequency_penalty and not params.presence_penalty
    if plain and rng.random() < 0.2:
        prompt = range(2**31 - int(rng.integers(1, 12)))
    output = rng.integers(0, num_ids, rng.integers(0, 6)).tolist()
    request = Request("7", None, prompt, params, int(rng.integers(0, 2**64, dtype=np.uint64)), max_tokens=2**31)
    ends = frozenset(params.stop_token_ids)
    sequence = Sequence(0, int(rng.integers(0, 3)), request, ends, None, token_ids=list(output))
    if sequence.counts is not None:
        for token in output:
            sequence.counts.commit(token)
    context = Context(prompt, output, ends)
    if rng.random() < 0.3:
        language = Language(rng, vocab_size, output)
        sequence.matcher = language  # type: ignore[assignment]
        context = Context(prompt, output, ends, language.allowed)
    logits = torch.from_numpy(rng.normal(0, 2, (nextn + 1, vocab_size)))
    if rng.random() < 0.3:
        logits = logits.round()
    logits = adjustments.mask_padding(logits, num_ids)
    drafts, rows = draft_alike(rng, logits, rule, sequence, num_ids)
    count = int(rng.integers(0, nextn + 1))
    if rng.random() < 0.2:
        logits[rng.integers(0, nextn + 1)] = torch.full((vocab_size,), rng.choice(FAULTS))
    return Case(sequence, context, logits[: count + 1], drafts[:count], rows)


def draft_alike(
    rng: np.random.Generator, logits: torch.Tensor, rule: Verification, sequence: Sequence, num_ids: int
) -> tuple[list[int], list[torch.Tensor]]:
    """Drafts from rows that are the target's but for some noise; now and then some id that was not drawn at all."""
    params, noise = sequence.request.params, Noise(sequence.request.seed, sequence.sample_index)
    scale = rng.choice([0.0, 0.3, 2.0])
    drafts, rows = [], []
    for slot in range(len(logits) - 1):
        row = verification.draft_row(logits[slot] + torch.from_numpy(rng.normal(0, scale, logits.shape[1])), params)
        token = verification.choose(row, params, sequence.position + slot, verification.draft_role(rule), noise)
        drafts.append(token if rng.random() < 0.9 else int(rng.integers(0, num_ids)))
        rows.append(row)
    return drafts, rows


def verified(
    rng: np.random.Generator,
    cases: list[Case],
    rule: Verification,
    alpha: float,
    nextn: int,
    mode: LogprobsMode,
    device: str = "cpu",
) -> list[list[Drawn]]:
    """What the verifier commits for all cases at once; its tensors say the same, and no launch waits for a device."""
    order = rng.permutation(len(cases) + 1)
    draft_rows = torch.zeros(len(cases) + 1, nextn, cases[0].logits.shape[1], dtype=torch.float64)
    for place, case in zip(order, cases, strict=False):
        if case.rows:
            draft_rows[place] = torch.stack(case.rows)
    blocks = [Block(case.sequence, tuple(case.drafts), int(place)) for place, case in zip(order, cases, strict=False)]
    verifier = Verifier(cases[0].logits.shape[1], mode, rule, alpha, nextn)
    logits, rows = torch.cat([case.logits for case in cases]).to(device), draft_rows.to(device)
    with nullcontext() if device == "cpu" else no_waits():
        done = verifier.launch(logits, verifier.prepare(blocks), rows)
    drawn = done.collect()
    for case, tokens, accepted, last, told in zip(
        cases, done.tokens.tolist(), done.accepted.tolist(), done.last.tolist(), drawn, strict=True
    ):
        assert tokens == [*case.drafts[:accepted], last, *[0] * (nextn - accepted)]
        assert told[-1].error or [one.token for one in told] == tokens[: accepted + 1]
    return drawn


def check(case: Case, drawn: list[Drawn], rule: Verification, alpha: float, mode: LogprobsMode) -> str:
    """Compares with the reference; says how the block ended."""
    try:
        verdict = case.verdict(rule, alpha, len(case.drafts))
    except RequestError:
        bad = len(drawn) - 1
        assert drawn[-1].error is not None
        assert [one.token for one in drawn[:-1]] == case.drafts[:bad]
        healed = case.logits.clone()
        healed[bad] = 0.0
        with pytest.raises(RequestError):
            case.verdict(rule, alpha, bad)
        if case.context.grammar is None and not case.params.min_tokens:
            assert case.verdict(rule, alpha, bad, healed).accepted == bad
        return "error"
    reached = drawn[: len(verdict.tokens)]
    assert [one.token for one in reached] == verdict.tokens
    stopped = verdict.accepted == len(verdict.tokens)
    assert stopped or len(drawn) == len(verdict.tokens)
    for k, (one, row) in enumerate(zip(reached, verdict.rows, strict=True)):
        count = case.params.logprobs
        told_from = case.logits[k] if mode == "raw_logprobs" else row
        expected = {} if count is None else logprobs.report(told_from, one.token, count)
        assert one.logprobs == expected and list(one.logprobs) == list(expected)
        assert one.logprob == (expected[one.token].logprob if expected else 0.0)
    return "stop" if stopped else "rejected" if verdict.accepted < len(case.drafts) else "bonus"


@pytest.mark.parametrize("rule, alpha", [("coupled", 1.0), ("ratio", 1.0), ("ratio", 0.6)])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_blocks_commit_what_the_reference_commits(
    rule: Verification, alpha: float, mode: LogprobsMode, rng: np.random.Generator
) -> None:
    ways = dict.fromkeys(("error", "stop", "rejected", "bonus"), 0)
    for _ in range(60):
        vocab_size, nextn = int(rng.choice([2, 3, 7, 33, 70])), int(rng.integers(0, 6))
        num_ids = int(rng.integers(max(2, vocab_size - 3), vocab_size + 1))
        cases = [random_case(rng, vocab_size, num_ids, rule, nextn) for _ in range(rng.integers(1, 12))]
        for case, drawn in zip(cases, verified(rng, cases, rule, alpha, nextn, mode), strict=True):
            ways[check(case, drawn, rule, alpha, mode)] += 1
    assert min(ways.values()) >= 10 and sum(ways.values()) >= 300, ways


@pytest.mark.parametrize("rule", RULES)
def test_drafts_are_those_of_the_reference(rule: Verification, rng: np.random.Generator) -> None:
    for _ in range(40):
        vocab_size, nextn, slots = int(rng.choice([3, 33, 70])), int(rng.integers(1, 5)), 5
        num_ids = vocab_size - int(rng.integers(0, 2))
        cases = [random_case(rng, vocab_size, num_ids, rule, 0) for _ in range(rng.integers(1, 6))]
        positions = torch.tensor([case.context.position for case in cases]) + int(rng.integers(0, 3))
        chooser = Verifier(num_ids, "raw_logprobs", rule, nextn=nextn).chooser([c.sequence for c in cases], positions)
        logits = torch.from_numpy(rng.normal(0, 2, (slots, len(cases), vocab_size)))
        for slot in range(slots):
            tokens = chooser(logits[slot], slot).tolist()
            for a, case in enumerate(cases):
                if slot >= nextn:
                    assert tokens[a] == int(logits[slot, a].argmax())
                    continue
                row = verification.draft_row(adjustments.mask_padding(logits[slot, a], num_ids), case.params)
                role = verification.draft_role(rule)
                assert tokens[a] == verification.choose(row, case.params, int(positions[a]) + slot, role, case.noise)
                if rule == "ratio" and slot == nextn - 1:
                    assert chooser.rows is not None and torch.equal(chooser.rows[a, slot], row)
        assert chooser.rows is None if rule == "coupled" else chooser.rows is not None


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> str:
    """A device without values: whatever reads one on the host, or makes a shape of one, raises."""
    for (name, backend), found in list(registry.implementations().items()):
        if backend == "cpu":
            monkeypatch.setitem(registry._implementations, (name, "meta"), found)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return "meta"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_nothing_of_a_launch_reads_the_device(
    rule: Verification, mode: LogprobsMode, meta: str, rng: np.random.Generator
) -> None:
    for nextn in (0, 1, 5):
        cases = [random_case(rng, 33, 30, rule, nextn) for _ in range(20)]
        verifier = Verifier(30, mode, rule, nextn=nextn)
        rows = verifier.prepare([Block(case.sequence, tuple(case.drafts), place) for place, case in enumerate(cases)])
        total = sum(len(case.logits) for case in cases)
        logits = torch.empty(total, 33, dtype=torch.float64, device=meta)
        draft_rows = torch.empty(len(cases), nextn, 33, dtype=torch.float64, device=meta)
        done = verifier.launch(logits, rows, draft_rows)
        assert done.tokens.shape == (20, 1 + nextn) and done.tokens.device.type == meta
        assert done.accepted.shape == done.last.shape == (20,)
        choose = verifier.chooser([case.sequence for case in cases], done.accepted + 1)
        chosen = [choose(logits[:20], slot) for slot in range(6)]
        assert {tokens.shape for tokens in chosen} == {(20,)}
        survival = survivals(torch.empty(20, 5, device=meta), torch.empty(5, dtype=torch.float64, device=meta))
        assert select_lengths(survival, done.accepted, 7).shape == (20,)
