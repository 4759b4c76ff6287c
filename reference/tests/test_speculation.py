"""Generation with drafts: the coupled text is the plain text, perfect and hopeless drafts count as they must."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from reference.checkpoint import load_checkpoint
from reference.generate import generate, token_by_token
from reference.model import ReferenceModel, draft
from reference.model.tests.test_model import small_config
from reference.spec.errors import RequestError
from reference.spec.outputs import CompletionOutput
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import Verification
from reference.speculation import Block, DSpark, Speculation
from reference.tests.enumeration import Branches, distance, law
from reference.tiny.build import random_checkpoint

pytestmark = pytest.mark.ci

VOCAB, EOS, BLOCK = 9, 1, 4
RULES: tuple[Verification, ...] = ("coupled", "ratio")
MIXES: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0, "repetition_penalty": 1.3, "stop": ["gh"]},
    "filters": {"temperature": 1.4, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "n": 2},
    "penalties": {"frequency_penalty": 0.9, "presence_penalty": 0.4, "repetition_penalty": 0.8, "logit_bias": {4: 1.5}},
    "ends": {"stop_token_ids": [5], "min_tokens": 3, "stop": ["cd", "h"], "logprobs": 2},
}


class Toy:
    """Random logits, a function of the last two tokens and the seed; as fast as a table."""

    config: Any = SimpleNamespace(vocab_size=VOCAB, eos_token_id=EOS, max_position_embeddings=40)

    def __init__(self, seed: int) -> None:
        table = np.random.default_rng(seed).normal(size=(VOCAB, VOCAB, VOCAB)) * 1.5
        self._table = torch.from_numpy(table)

    def forward(self, tokens: torch.Tensor, replay_start: int = 0) -> torch.Tensor:
        before = torch.cat((tokens[:1], tokens[:-1]))
        return self._table[before, tokens]


class ToyDrafter:
    """Drafts from a toy's logits, mixed with another's; alike: 1 is the toy itself, 0 the other alone."""

    block_size = BLOCK

    def __init__(self, toy: Toy, other: Toy, alike: float) -> None:
        self._toy, self._other, self._alike = toy, other, alike

    def propose(self, tokens: torch.Tensor, choose: draft.Choose, replay_start: int) -> draft.Draft:
        ids, logits = tokens, []
        for slot in range(BLOCK):
            row = self._alike * self._toy.forward(ids)[-1:] + (1 - self._alike) * self._other.forward(ids)[-1:]
            logits.append(row)
            ids = torch.cat((ids, choose(row, slot)))
        confidence = torch.arange(BLOCK, dtype=torch.float64)[None]
        return draft.Draft(ids[None, -BLOCK:], torch.stack(logits, dim=1), confidence)


class Wrong(ToyDrafter):
    """Drafts that the target cannot draw: its own best token is masked."""

    def propose(self, tokens: torch.Tensor, choose: draft.Choose, replay_start: int) -> draft.Draft:
        def worst(logits: torch.Tensor, slot: int) -> torch.Tensor:
            best = logits == logits.amax(dim=-1, keepdim=True)
            return choose(torch.where(best, -torch.inf, logits), slot)

        return super().propose(tokens, worst, replay_start)


class Letters:
    """Token t is the letter at place t; 0 and EOS have no text."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join("__cdefghi"[t] for t in ids if t > EOS)


def completions(toy: Any, params: SamplingParams, speculation: Speculation | None = None) -> list[CompletionOutput]:
    return generate(toy, Letters(), [3, 2], params, 5, complete=speculation or token_by_token).outputs


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("nextn", [0, 1, 2, BLOCK])
def test_coupled_outputs_are_those_without_drafts(mix: str, nextn: int, seed: int) -> None:
    toy, rng = Toy(seed), np.random.default_rng(seed)
    for trial in range(6):
        params = SamplingParams(**{"max_tokens": 14, "logprobs": 1, "seq_seed": trial, **MIXES[mix]})
        drafter = ToyDrafter(toy, Toy(seed + 1), alike=trial / 5)
        fixed = Speculation(drafter, nextn)
        scheduled = dataclasses.replace(fixed, length=lambda block: int(rng.integers(0, nextn + 1)))
        plain = completions(toy, params)
        assert completions(toy, params, fixed) == plain
        assert completions(toy, params, scheduled) == plain


@pytest.mark.parametrize("mix", ["greedy", "ends"])
def test_ratio_obeys_the_same_ends(mix: str, seed: int) -> None:
    toy = Toy(seed)
    for trial in range(10):
        params = SamplingParams(**{"max_tokens": 14, "seq_seed": trial, **MIXES[mix]})
        (done,) = completions(toy, params, Speculation(ToyDrafter(toy, Toy(seed + 1), 0.7), 3, "ratio"))
        assert len(done.token_ids) <= 14 and EOS not in done.token_ids[:-1]
        assert mix == "greedy" or 5 not in done.token_ids[:-1]
        if mix == "greedy":
            assert done == completions(toy, params)[0]


def blocks_of(toy: Toy, drafter: ToyDrafter, rule: Verification, temperature: float, nextn: int) -> list[Block]:
    """The blocks of a completion that goes on to its length, which is whole blocks."""
    told: list[Block] = []
    params = SamplingParams(max_tokens=1 + 6 * (nextn + 1), ignore_eos=True, temperature=temperature)
    (done,) = completions(toy, params, Speculation(drafter, nextn, rule, record=told.append))
    assert len(done.token_ids) == 1 + sum(block.committed for block in told) == params.max_tokens
    return told


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_perfect_draft_is_always_kept(rule: Verification, temperature: float, seed: int) -> None:
    toy = Toy(seed)
    told = blocks_of(toy, ToyDrafter(toy, toy, 1.0), rule, temperature, 3)
    assert [(block.accepted, block.committed) for block in told] == [(3, 4)] * 6
    assert all(block.calibration_row().judged == 3 for block in told)


@pytest.mark.parametrize("rule", RULES)
def test_a_hopeless_draft_is_never_kept(rule: Verification, seed: int) -> None:
    toy = Toy(seed)
    told = blocks_of(toy, Wrong(toy, toy, 1.0), rule, 0, 3)
    assert {(block.accepted, block.committed) for block in told} == {(0, 1)}


def test_a_block_holds_no_more_drafts_than_there_is_room_for(seed: int) -> None:
    toy = Toy(seed)
    told: list[Block] = []
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    completions(toy, params, Speculation(ToyDrafter(toy, toy, 1.0), BLOCK, record=told.append))
    assert [(len(block.drafts), block.committed) for block in told] == [(2, 3)]
    assert told[0].confidence == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("rule", RULES)
def test_padding_of_the_vocabulary_is_never_drafted(rule: Verification, seed: int) -> None:
    toy = Toy(seed)
    told: list[Block] = []
    params = SamplingParams(max_tokens=15, ignore_eos=True)
    speculation = Speculation(ToyDrafter(toy, toy, 1.0), 3, rule, record=told.append)
    generate(toy, None, [3], params, 1, vocab_size=5, complete=speculation)
    assert max(token for block in told for token in block.drafts) < 5
    assert all(block.accepted == len(block.drafts) for block in told)


@pytest.mark.parametrize("rule", RULES)
def test_drafts_obey_bias_and_filters_but_no_penalties_and_no_masks(rule: Verification, seed: int) -> None:
    toy, ids = Toy(seed), torch.arange(VOCAB)
    common: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "top_k": 3, "logit_bias": {6: 2.0}, "seq_seed": 9}
    penalised: dict[str, Any] = {
        "frequency_penalty": 2.0,
        "repetition_penalty": 3.0,
        "min_tokens": 9,
        "stop_token_ids": [6, 7],
    }

    def drafts_after_a_three(params: SamplingParams, later: torch.Tensor) -> list[int]:
        """Of the first block; its anchor is 3 whatever the seed."""
        told: list[Block] = []
        speculation = Speculation(ToyDrafter(toy, toy, 1.0), 4, rule, record=told.append)
        generate(
            toy, None, [6, 3], params, 1, grammar=lambda output: later if output else ids == 3, complete=speculation
        )
        return told[0].drafts

    expected = drafts_after_a_three(SamplingParams(**common), ids >= 0)
    assert drafts_after_a_three(SamplingParams(**common, **penalised), ids < 5) == expected
    assert drafts_after_a_three(SamplingParams(**{**common, "logit_bias": {6: -99.0}}), ids >= 0) != expected


def test_a_kept_stop_token_judges_no_later_slot() -> None:
    told = Block(index=0, drafts=[3, EOS, 4], confidence=[0.1, 0.2, 0.3], accepted=2, committed=2, stopped=True)
    assert (told.calibration_row().judged, told.calibration_row().accepted) == (2, 2)
    rejected = dataclasses.replace(told, stopped=False)
    assert (rejected.calibration_row().judged, rejected.calibration_row().accepted) == (3, 2)


def test_a_grammar_holds_inside_blocks(seed: int) -> None:
    def alternating(output: Any) -> torch.Tensor:
        return torch.arange(VOCAB) % 2 == len(output) % 2

    toy = Toy(seed)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    coupled, ratio = (Speculation(ToyDrafter(toy, Toy(0), 0.5), 3, rule) for rule in RULES)
    outputs = [
        generate(toy, None, [3], params, 1, grammar=alternating, complete=complete).outputs
        for complete in (token_by_token, coupled, ratio)
    ]
    assert outputs[0] == outputs[1]
    for (done,) in outputs:
        assert [token % 2 for token in done.token_ids] == [0, 1] * 6


@pytest.mark.parametrize("mix", ["plain", "filters", "penalties", "ends"])
def test_ratio_completions_have_the_law_of_those_without_drafts(mix: str, seed: int) -> None:
    params = SamplingParams(**{"max_tokens": 3, **MIXES[mix], "n": 1})
    toy = Toy(seed)
    drafter = ToyDrafter(toy, Toy(seed + 1), 0.4)
    few = torch.arange(VOCAB) < 4

    def text(source: Branches, nextn: int) -> tuple[int, ...]:
        speculation = Speculation(drafter, nextn, "ratio", source=lambda *_: source)
        done = generate(toy, Letters(), [3, 2], params, 0, complete=speculation, grammar=lambda _: few).outputs[0]
        return tuple(done.token_ids)

    drafted, plain = law(lambda source: text(source, 2)), law(lambda source: text(source, 0))
    assert distance(drafted, plain) < 1e-9
    assert len(plain) > 8


@pytest.mark.parametrize("nextn", [-1, BLOCK + 1])
def test_more_drafts_than_a_block_holds_are_refused(nextn: int) -> None:
    with pytest.raises(RequestError, match=rf"nextn = {nextn}: must be in 0..{BLOCK}"):
        Speculation(ToyDrafter(Toy(0), Toy(0), 1.0), nextn)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ReferenceModel:
    folder = Path(tmp_path_factory.mktemp("random"))
    random_checkpoint(small_config(), 3, folder)
    loaded = load_checkpoint(folder)
    return ReferenceModel(loaded.config, loaded.weights, loaded.token_map)


def test_the_models_own_draft_reads_what_is_before_its_anchor(model: ReferenceModel) -> None:
    trace: dict[str, torch.Tensor] = {}
    tokens = torch.arange(20, 40)
    with torch.no_grad():
        model.forward(tokens, trace=trace)
        whole = draft.propose(model, trace["dspark_taps"], tokens[12:13], torch.tensor([11]))
        prefix = DSpark(model).propose(tokens[:13], draft.greedy, 0)
    assert torch.equal(prefix.logits, whole.logits) and torch.equal(prefix.ids, whole.ids)


@pytest.mark.parametrize(("temperature", "nextn"), [(0.0, 5), (0.6, 2)])
def test_the_models_own_draft_changes_no_coupled_text(model: ReferenceModel, temperature: float, nextn: int) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=temperature, seq_seed=2, logprobs=1)
    prompt = [5, 300, 17, 42]
    told: list[Block] = []
    speculation = Speculation(DSpark(model), nextn, record=told.append)
    with torch.no_grad():
        plain = generate(model, None, prompt, params, 0)
        assert generate(model, None, prompt, params, 0, complete=speculation) == plain
    assert all(len(block.confidence) == nextn for block in told)
