"""Drafts in the engine's batches equal the reference's, one request at a time: under the ratio rule ids, logprob bits
and reasons, under both rules what is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from equivalence.tests.test_sampling_agrees import Hashed, comparable, random_params
from optimized import LLM, SamplingParams
from optimized.config import EngineConfig
from optimized.engine.step_cost import DENSE_ROWS, curve
from optimized.tests.stub import BLOCK, CONTEXT, VOCAB, StubWorker, byte_level_tokenizer, model_folder, stub_llm
from reference import acceptance_statistics, calibration, verification, verification_lengths
from reference.checkpoint import load_checkpoint
from reference.generate import generate
from reference.model import ReferenceModel, draft
from reference.spec.speculation import Verification
from reference.speculation import Block, DSpark, Speculation
from reference.step_cost import StepCost
from reference.tiny import __path__ as tiny_folder

pytestmark = pytest.mark.ci

RULES: tuple[Verification, ...] = ("coupled", "ratio")


class HashedDrafter:
    """The stub worker's drafts as the reference asks for them."""

    block_size = BLOCK

    def __init__(self) -> None:
        self._worker = StubWorker(EngineConfig())

    def propose(self, tokens: torch.Tensor, choose: draft.Choose, replay_start: int) -> draft.Draft:
        context, logits = tokens.tolist(), []
        for slot in range(BLOCK):
            logits.append(self._worker.draft_logits(context)[None])
            context.append(int(choose(logits[-1], slot)))
        confidence = torch.arange(2, 2 - BLOCK, -1, dtype=torch.float64)[None]
        return draft.Draft(torch.tensor([context[-BLOCK:]]), torch.stack(logits, dim=1), confidence)


def params_of(rng: random.Random) -> SamplingParams:
    """Every parameter; temperatures at which drafts are refused by chance."""
    drawn = random_params(rng)
    return SamplingParams(**{**drawn, "temperature": rng.choice([0, 0.7, 1.0, 1.5]), "prompt_logprobs": None})


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("nextn", [1, 4])
def test_batches_with_drafts_equal_the_reference_bit_for_bit(
    rule: Verification, nextn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path)
    llm, _ = stub_llm(monkeypatch, folder, nextn=nextn, verification=rule, max_num_seqs=4)
    rng = random.Random(f"{rule} {nextn}")
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(24)]
    params = [params_of(rng) for _ in prompts]
    got = llm.generate(prompts, params, use_tqdm=False)
    blocks: list[Block] = []
    speculation = Speculation(HashedDrafter(), nextn, rule, record=blocks.append)
    model, tokenizer = Hashed(folder), byte_level_tokenizer()
    for prompt, one, output in zip(prompts, params, got, strict=True):
        before = len(blocks)
        expected = generate(model, tokenizer, prompt, one, 0, max_model_len=CONTEXT, complete=speculation)
        assert comparable(output) == comparable(expected)
        assert output.metrics is not None
        assert output.metrics.num_verified_drafts == sum(len(block.drafts) for block in blocks[before:])
        assert output.metrics.num_accepted_drafts == sum(block.accepted for block in blocks[before:])
    found, counted = llm.statistics.acceptance, acceptance_statistics.Acceptance.of(blocks, nextn)
    assert (found.blocks, found.committed) == (counted.blocks, counted.committed)
    assert (found.verified, found.reached, found.accepted) == (counted.verified, counted.reached, counted.accepted)
    assert (found.tau, found.rho) == (counted.tokens_per_block, counted.per_draft)
    assert (found.conditional, found.unconditional) == (counted.conditional, counted.unconditional)
    assert found.confidence_error == pytest.approx(confidence_errors(blocks, nextn), abs=1e-6)


def confidence_errors(blocks: Sequence[Block], nextn: int) -> list[float]:
    """By slot, of the survival that the raw confidences tell."""
    rows = [block.calibration_row() for block in blocks]
    confidences = [verification_lengths.probabilities(row.logits, [1.0] * nextn) for row in rows]
    survival = np.array([verification_lengths.survival(one) for one in confidences])  # [N, nextn]
    errors = []
    for slot in range(nextn):
        known = [row.judged > slot for row in rows]
        kept = np.array([row.accepted > slot for row in rows])
        errors.append(calibration.calibration_error(survival[known, slot], kept[known]))
    return errors


def test_penalised_residual_is_that_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path)
    llm, _ = stub_llm(monkeypatch, folder, nextn=3, verification="ratio", penalised_residual=True)
    one = SamplingParams(max_tokens=30, ignore_eos=True, seq_seed=3, logprobs=1)
    (got,) = llm.generate([[5, 6]], one, use_tqdm=False)
    speculation = Speculation(HashedDrafter(), 3, "ratio", alpha=verification.PENALISED)
    expected = generate(Hashed(folder), byte_level_tokenizer(), [5, 6], one, 0, complete=speculation)
    assert comparable(got) == comparable(expected)


def test_the_bundled_model_drafts_as_the_reference_does() -> None:
    folder = Path(tiny_folder[0])
    stored = load_checkpoint(folder)
    model = ReferenceModel(stored.config, stored.weights, stored.token_map)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in ("In the beginning", "And the ")]
    params = [
        SamplingParams(max_tokens=10, temperature=t, top_k=k, seq_seed=5, logprobs=1, ignore_eos=True)
        for t, k in ((0.8, 0), (0.5, 30))
    ]
    blocks: list[Block] = []
    speculation: Any = Speculation(DSpark(model), 5, "ratio", record=blocks.append)
    expected = [
        comparable(generate(model, tokenizer, prompt, one, 0, max_model_len=128, complete=speculation))
        for prompt, one in zip(prompts, params, strict=True)
    ]
    for lag in (False, True):
        options: dict[str, Any] = {"nextn": 5, "verification": "ratio", "async_scheduling": lag}
        llm = LLM("tiny", max_num_seqs=2, max_model_len=128, **options)
        assert [comparable(one) for one in llm.generate(prompts, params, use_tqdm=False)] == expected
        llm._engine.check_idle()
        found, counted = llm.statistics.acceptance, acceptance_statistics.Acceptance.of(blocks, 5)
        assert (found.verified, found.accepted) == (counted.verified, counted.accepted)
        assert found.confidence_error == pytest.approx(confidence_errors(blocks, 5), abs=1e-6)
        assert counted.accepted[1] > 0
        assert counted.per_draft < 1


@pytest.mark.parametrize("most_rows", [1, 7, 64, 65, 100, 300])
def test_the_cost_of_a_step_is_the_curve_of_the_reference(most_rows: int, rng: np.random.Generator) -> None:
    for sizes in ([1, 2, 4, 8, 16], [*range(8, DENSE_ROWS + 1, 8)], [1, 8, DENSE_ROWS, 96, 192, 384], [DENSE_ROWS]):
        points = [(size, float(rng.uniform(1, 50))) for size in sizes]
        dense = max(size for size in sizes if size <= DENSE_ROWS)
        expected = StepCost(points, captured=dense)
        assert curve(points, most_rows)[1:].tolist() == pytest.approx([expected(n) for n in range(1, most_rows + 1)])
