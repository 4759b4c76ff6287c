"""Drafts in the engine: the coupled text is the text without drafts whatever happens around it, counts add up, and a
request that ends in the middle of a block leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized import LLM, RequestOutput, SamplingParams
from optimized.engine.verification_schedule import Choice, VerificationSchedule
from optimized.model.draft import Choose, Draft
from optimized.tests.stub import BLOCK, VOCAB, StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci

CROWDED: dict[str, Any] = {"max_num_seqs": 6, "num_pages": 13, "max_num_batched_tokens": 36}


def random_requests(rng: np.random.Generator, count: int) -> tuple[list[Any], list[SamplingParams]]:
    """Prompts, and parameters of every kind: what bends the logits, filters, ends at ids, strings and lengths."""
    prompts = [rng.integers(2, 256, size=rng.integers(1, 40)).tolist() for _ in range(count)]
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.5, 1.0])),
            top_k=int(rng.choice([0, 3, 40])),
            top_p=float(rng.choice([1.0, 0.8])),
            min_p=float(rng.choice([0.0, 0.1])),
            max_tokens=int(rng.integers(2, 40)),
            min_tokens=int(rng.integers(0, 3)),
            stop=[["the", "Q"], ["a", "ab"], []][int(rng.integers(0, 3))],
            stop_token_ids=rng.integers(2, VOCAB, size=4).tolist(),
            ignore_eos=bool(rng.integers(0, 2)),
            n=int(rng.integers(1, 3)),
            logprobs=[None, 0, 2][int(rng.integers(0, 3))],
            presence_penalty=float(rng.choice([0.0, 1.0])),
            frequency_penalty=float(rng.choice([0.0, -0.5])),
            repetition_penalty=float(rng.choice([1.0, 1.2])),
            logit_bias=[None, {5: 3.0, 7: -100.0}][int(rng.integers(0, 2))],
            seq_seed=int(rng.integers(0, 2**63)),
        )
        for _ in range(count)
    ]
    return prompts, params


def run(llm: LLM, prompts: list[Any], params: list[SamplingParams]) -> list[Any]:
    """What is generated; afterwards everything is free again, and every token was counted once."""
    before = llm.statistics.generated_tokens
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm._engine.check_idle()
    made = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    assert llm.statistics.generated_tokens - before == made
    return [output.outputs for output in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("lengths", ["fixed", "scheduled"])
@pytest.mark.parametrize("nextn", [1, 3, BLOCK])
def test_coupled_outputs_are_those_without_drafts(
    nextn: int, lengths: str, lag: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    prompts, params = random_requests(rng, 14)
    expected = run(stub_llm(monkeypatch, folder)[0], prompts, params)
    options = {"nextn": nextn, "verification_lengths": lengths, "async_scheduling": lag}
    llm, worker = stub_llm(monkeypatch, folder, **options, **CROWDED)
    assert run(llm, prompts, params) == expected
    acceptance = llm.statistics.acceptance
    assert llm._engine._scheduler.num_preemptions > 0
    assert 0 < acceptance.rho < 1
    assert 1 < acceptance.tau < 1 + nextn
    assert worker.steps == llm.statistics.steps


def test_budgets_do_not_depend_on_the_lag(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: dict[bool, list[int]] = {True: [], False: []}
    choose = VerificationSchedule.choose
    params = SamplingParams(max_tokens=60, ignore_eos=True, seq_seed=6, n=3)
    for lag, found in budgets.items():

        def recorded(self: VerificationSchedule, *step: Any, found: list[int] = found) -> Choice:
            made = choose(self, *step)
            found.append(made.budget)
            return made

        options: dict[str, Any] = {"nextn": 4, "verification_lengths": "scheduled", "async_scheduling": lag}
        llm, _ = stub_llm(monkeypatch, folder, **options)
        monkeypatch.setattr(VerificationSchedule, "choose", recorded)
        run(llm, [[5, 6]], [params])
    whole = 12  # steps before any sequence comes near its end, which a lag shows later
    assert budgets[True][:whole] == budgets[False][:whole]
    assert len(budgets[False]) > whole
    assert len(set(budgets[False][:whole])) > 1


@pytest.mark.parametrize("penalised", [False, True])
def test_ratio_outputs_do_not_depend_on_company_lag_or_preemption(
    penalised: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    prompts, params = random_requests(rng, 12)
    options: dict[str, Any] = {"nextn": 3, "verification": "ratio", "penalised_residual": penalised}
    alone, _ = stub_llm(monkeypatch, folder, **options, max_num_seqs=1, async_scheduling=False)
    expected = run(alone, prompts, params)
    plain = run(stub_llm(monkeypatch, folder)[0], prompts, params)
    assert expected != plain
    for one, found, without in zip(params, expected, plain, strict=True):
        assert one.temperature > 0 or found == without
    for lag in (False, True):
        llm, _ = stub_llm(monkeypatch, folder, **options, async_scheduling=lag, **CROWDED)
        assert run(llm, prompts, params) == expected
        assert llm._engine._scheduler.num_preemptions > 0


def proposing(worker: StubWorker, bend: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[list[int]], torch.Tensor]:
    """Draft logits that are the model's own, bent."""
    return lambda tokens: bend(worker.logits(tokens))


def masked_best(logits: torch.Tensor) -> torch.Tensor:
    return torch.where(logits == logits.max(), -torch.inf, logits)


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_perfect_drafts_are_all_kept(
    lag: bool, temperature: float, rule: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, worker = stub_llm(monkeypatch, folder, nextn=4, verification=rule, async_scheduling=lag)
    monkeypatch.setattr(worker, "draft_logits", proposing(worker, lambda logits: logits))
    one = SamplingParams(temperature=temperature, max_tokens=1 + 5 * 6, ignore_eos=True, seq_seed=4, n=3)
    run(llm, [[7, 8], [9]], [one, one])
    acceptance = llm.statistics.acceptance
    assert (acceptance.rho, acceptance.tau) == (1.0, 5.0)
    assert acceptance.conditional == acceptance.unconditional == [1.0] * 4
    assert acceptance.verified == acceptance.accepted == acceptance.reached == [36] * 4


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("temperature", [0.0, 1e-3])
@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_hopeless_drafts_are_all_refused(
    lag: bool, temperature: float, rule: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SamplingParams(temperature=temperature, max_tokens=20, ignore_eos=True, seq_seed=4, n=3)
    expected = run(stub_llm(monkeypatch, folder)[0], [[7, 8], [9]], [one, one])
    llm, worker = stub_llm(monkeypatch, folder, nextn=4, verification=rule, async_scheduling=lag)
    monkeypatch.setattr(worker, "draft_logits", proposing(worker, masked_best))
    assert run(llm, [[7, 8], [9]], [one, one]) == expected
    acceptance = llm.statistics.acceptance
    assert (acceptance.rho, acceptance.tau, acceptance.blocks) == (0.0, 1.0, 6 * 19)
    assert acceptance.verified == [6 * 18, 6 * 17, 6 * 16, 6 * 15]  # near the end there is room for fewer


def test_requests_know_their_drafts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, worker = stub_llm(monkeypatch, folder, nextn=2)
    monkeypatch.setattr(worker, "draft_logits", proposing(worker, lambda logits: logits))
    (output,) = llm.generate([[5]], SamplingParams(max_tokens=7, ignore_eos=True, n=2, seq_seed=3), use_tqdm=False)
    assert output.metrics is not None
    assert (output.metrics.num_verified_drafts, output.metrics.num_accepted_drafts) == (8, 8)


@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_stop_strings_cut_a_block_where_it_begins(lag: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is that of one token after another, up to the leftmost stop string, whatever stands behind it."""
    plain, _ = stub_llm(monkeypatch, folder)
    free = SamplingParams(max_tokens=40, ignore_eos=True, seq_seed=9, temperature=1.0)
    (whole,) = plain.generate([[5, 6]], free, use_tqdm=False)
    text = whole.outputs[0].text
    llm, worker = stub_llm(monkeypatch, folder, nextn=BLOCK, async_scheduling=lag)
    monkeypatch.setattr(worker, "draft_logits", proposing(worker, lambda logits: logits))
    for start in range(0, len(text) - 3, 2):
        stop = text[start : start + 3]
        params = SamplingParams(
            max_tokens=40, ignore_eos=True, seq_seed=9, temperature=1.0, stop=[stop, text[start + 1 :]], logprobs=0
        )
        if "\ufffd" in stop:
            continue
        expected = run(plain, [[5, 6]], [params])
        assert run(llm, [[5, 6]], [params]) == expected
        assert expected[0][0].text == text[: text.find(stop)]


class StoppedError(Exception):
    """Ends a call from within."""


@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_aborts_and_failures_between_draft_and_verification_harm_nobody(
    lag: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    prompts, params = random_requests(rng, 8)
    llm, worker = stub_llm(monkeypatch, folder, nextn=3, async_scheduling=lag, **CROWDED)
    expected = run(llm, prompts, params)
    propose, calls = worker.propose, 0

    def fails(*arguments: Any) -> Draft:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise StoppedError
        return propose(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "propose", fails)
        with pytest.raises(StoppedError):
            run(llm, prompts, params)
    llm._engine.check_idle()
    assert run(llm, prompts, params) == expected
    first = llm._next_request
    outputs: list[RequestOutput] = []
    for steps, output in enumerate(llm.stream(zip(prompts, params, strict=True))):
        outputs.append(output)
        if steps == 0:
            llm.abort(str(first + 5))
    llm._engine.check_idle()
    for number, (output, whole) in enumerate(zip(outputs, expected, strict=True)):
        assert number == 5 or output.outputs == whole
        for one, other in zip(output.outputs, whole, strict=True):
            assert one.token_ids == other.token_ids[: len(one.token_ids)]


def test_a_row_that_cannot_be_drawn_from_ends_its_request_inside_the_block(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SamplingParams(max_tokens=20, ignore_eos=True, seq_seed=2)
    llm, worker = stub_llm(monkeypatch, folder, nextn=4)
    monkeypatch.setattr(worker, "draft_logits", proposing(worker, lambda logits: torch.nan_to_num(logits)))
    (whole,), neighbour = run(llm, [[5, 6], [7]], [one, one])
    worker.broken[(5, 6, *whole.token_ids[:9])] = float("nan")
    (broken,), other = run(llm, [[5, 6], [7]], [one, one])
    assert other == neighbour
    assert broken.finish_reason == "error"
    assert "NaN" in (broken.error or "")
    assert broken.token_ids == whole.token_ids[:9]


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
@pytest.mark.parametrize("lengths", ["fixed", "scheduled"])
@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_a_broken_draft_costs_nobody_their_text(
    lag: bool, lengths: str, rule: str, folder: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Confidences and logits of a draft that are no numbers are those of drafts that nobody trusts."""
    cold = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, n=2, logprobs=1)
    prompts = [[5, 6], [7], [8, 9, 10]]
    expected = run(stub_llm(monkeypatch, folder)[0], prompts, [cold] * 3)
    options: dict[str, Any] = {"verification": rule, "verification_lengths": lengths, "async_scheduling": lag}
    for value in (float("nan"), float("inf"), -float("inf")):
        llm, worker = stub_llm(monkeypatch, folder, nextn=4, **options, **CROWDED)
        propose = worker.propose

        def broken(step: Any, *arguments: Any, propose: Callable[..., Draft] = propose, value: float = value) -> Draft:
            draft = propose(step, *arguments)
            confidence = draft.confidence.clone()
            confidence[:, rng.integers(0, BLOCK)] = value
            return Draft(draft.ids, draft.logits, confidence)

        monkeypatch.setattr(worker, "propose", broken)
        drafts = worker.draft_logits
        monkeypatch.setattr(
            worker,
            "draft_logits",
            lambda tokens, of=drafts, value=value: of(tokens) * (value if len(tokens) % 3 == 0 else 1),
        )
        assert run(llm, prompts, [cold] * 3) == expected
        assert "nan" not in llm.statistics.acceptance.describe()


@pytest.mark.parametrize("lag", [True, False], ids=["async", "sync"])
def test_structured_texts_are_those_without_drafts(lag: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas: list[dict[str, Any]] = [
        {"schema_type": "regex", "schema": "[a-d]+(the| and){1,3}"},
        {"schema_type": "json", "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2}},
        {"schema_type": "choice", "schema": ["yes", "no", "yesterday"]},
    ]
    params = [
        SamplingParams(max_tokens=24, temperature=t, seq_seed=i, n=2, logprobs=1, so_args=schemas[i % 3], min_tokens=m)
        for i, (t, m) in enumerate([(0.0, 0), (1.0, 0), (1.0, 4), (0.7, 2), (1.0, 0), (0.0, 0)])
    ]
    prompts = [[40 + i, 7] for i in range(len(params))]
    expected = run(stub_llm(monkeypatch, folder, grammar_workers=1)[0], prompts, params)
    llm, worker = stub_llm(monkeypatch, folder, grammar_workers=1, nextn=4, async_scheduling=lag, **CROWDED)
    assert run(llm, prompts, params) == expected
    monkeypatch.setattr(worker, "draft_logits", lambda tokens: likes(tokens, expected))
    assert run(llm, prompts, params) == expected
    assert llm.statistics.acceptance.accepted[1] > 0


def likes(tokens: list[int], outputs: list[Any]) -> torch.Tensor:
    """Draft logits that continue one of the outputs, where the tokens are in one of them."""
    row = torch.zeros(VOCAB, dtype=torch.float64)
    for one in (completion for output in outputs for completion in output):
        for place in range(len(one.token_ids)):
            if tokens[2:] == one.token_ids[:place]:
                row[one.token_ids[place]] = 50.0
    return row


def test_the_worker_may_be_given_another_drafter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever proposes, the coupled text stays."""
    one = SamplingParams(max_tokens=20, seq_seed=2, n=2)
    expected = run(stub_llm(monkeypatch, folder)[0], [[5, 6], [7]], [one, one])
    llm, worker = stub_llm(monkeypatch, folder, nextn=3)

    def constant(
        step: Any, places: torch.Tensor, tokens: torch.Tensor, accepted: torch.Tensor, choose: Choose
    ) -> Draft:
        logits = torch.zeros(len(tokens), VOCAB, dtype=torch.float64)
        ids = torch.stack([choose(logits, slot) for slot in range(BLOCK)], dim=1)
        return Draft(ids, logits[:, None].expand(-1, BLOCK, -1), torch.zeros(len(tokens), BLOCK, dtype=torch.float64))

    monkeypatch.setattr(worker, "propose", constant)
    assert run(llm, [[5, 6], [7]], [one, one]) == expected
