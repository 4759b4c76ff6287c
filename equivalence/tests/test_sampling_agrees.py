"""Sampling in the engine's batches equals the reference's, one request at a time: ids, logprob bits, ranks, reasons."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from optimized import LLM
from optimized.config import EngineConfig
from optimized.tests.stub import CONTEXT, VOCAB, StubWorker, byte_level_tokenizer, model_folder, stub_llm
from reference.generate import generate
from reference.spec.config import ModelConfig
from reference.spec.outputs import RequestOutput
from reference.spec.sampling import LogprobsMode, SamplingParams

pytestmark = pytest.mark.ci

MODES: tuple[LogprobsMode, ...] = ("raw_logprobs", "processed_logprobs")


class Hashed:
    """The stub worker's logits as the reference asks for them."""

    def __init__(self, folder: Path) -> None:
        self.config = ModelConfig.from_file(folder / "config.json")
        self._worker = StubWorker(EngineConfig())

    def forward(self, tokens: torch.Tensor, replay_start: int = 0) -> torch.Tensor:
        """Logits [T, V]."""
        ids = tokens.tolist()
        return torch.stack([self._worker.logits(ids[: i + 1]) for i in range(len(ids))])


def random_params(rng: random.Random) -> dict[str, Any]:
    """Every parameter at a neutral, a mild or an extreme value."""
    few = [rng.randrange(VOCAB) for _ in range(4)]
    return {
        "n": rng.choice([1, 1, 2]),
        "temperature": rng.choice([0, 1e-6, 1e-4, 0.3, 1.0, 5.0]),
        "top_k": rng.choice([0, -1, 1, 2, 40, VOCAB, VOCAB + 7]),
        "top_p": rng.choice([1.0, 0.9, 0.3, 1e-9]),
        "min_p": rng.choice([0.0, 0.05, 1.0]),
        "max_tokens": (most := rng.randint(1, 24)),
        "min_tokens": rng.randint(0, most),
        "ignore_eos": rng.random() < 0.2,
        "stop_token_ids": rng.choice([[], few]),
        "stop": rng.choice([[], ["a"], ["the", "n"]]),
        "seq_seed": rng.getrandbits(64),
        "logprobs": rng.choice([None, 0, 1, 5, VOCAB + 1]),
        "prompt_logprobs": rng.choice([None, None, 0, 3]),
        "presence_penalty": rng.choice([0.0, 0.7, -2.0]),
        "frequency_penalty": rng.choice([0.0, 0.3, -2.0]),
        "repetition_penalty": rng.choice([1.0, 1.3, 0.5, 1e300]),
        "logit_bias": rng.choice([None, dict(zip(few, [100, -100, 3.5, 0.25], strict=True))]),
    }


def comparable(output: RequestOutput) -> Any:
    """Everything that must be equal, with logprobs in their order."""

    def entries(told: Any) -> Any:
        return told and [one and [(token, lp.logprob, lp.rank) for token, lp in one.items()] for one in told]

    return entries(output.prompt_logprobs), [
        (o.token_ids, o.text, entries(o.logprobs), o.cumulative_logprob, o.finish_reason, o.stop_reason)
        for o in output.outputs
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pages", [None, 9])
def test_batches_equal_the_reference_bit_for_bit(
    mode: LogprobsMode, pages: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path)
    llm, _ = stub_llm(monkeypatch, folder, logprobs_mode=mode, num_pages=pages)
    rng = random.Random(f"{mode} {pages}")
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))] for _ in range(24)]
    params = [SamplingParams(**random_params(rng)) for _ in prompts]
    got = llm.generate(prompts, params, use_tqdm=False)
    assert (pages is None) == (sum(output.metrics.num_preemptions for output in got if output.metrics) == 0)
    model, tokenizer = Hashed(folder), byte_level_tokenizer()
    for prompt, one, output in zip(prompts, params, got, strict=True):
        expected = generate(model, tokenizer, prompt, one, 0, max_model_len=CONTEXT, logprobs_mode=mode)
        assert comparable(output) == comparable(expected)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LLM, StubWorker]:
    return stub_llm(monkeypatch, model_folder(tmp_path))


@pytest.mark.parametrize(
    "fault, params, message",
    [
        (float("nan"), {}, "hold NaN"),
        (float("inf"), {}, "hold \\+inf"),
        (-float("inf"), {}, "every token is masked"),
        (1e300, {"repetition_penalty": 1e-300}, "with bias and penalties .* \\+inf"),
    ],
)
def test_a_row_from_which_nothing_can_be_drawn_ends_its_own_request(
    pair: tuple[LLM, StubWorker], fault: float, params: dict[str, Any], message: str
) -> None:
    llm, worker = pair
    prompts = [[5, 6], list(range(2, VOCAB))[:60], [9]]
    plain = SamplingParams(seq_seed=1, max_tokens=4)
    healthy = llm.generate(prompts, plain, use_tqdm=False)
    worker.broken[tuple(prompts[1])] = fault
    got = llm.generate(prompts, [plain, SamplingParams(**params), plain], use_tqdm=False)
    assert [comparable(got[i]) for i in (0, 2)] == [comparable(healthy[i]) for i in (0, 2)]
    bad = got[1].outputs[0]
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert re.search(message, bad.error)


def test_nan_behind_a_prompt_logprob_ends_its_own_request(pair: tuple[LLM, StubWorker]) -> None:
    llm, worker = pair
    worker.broken[(5, 6)] = float("nan")
    bad, good = llm.generate([[5, 6, 7], [6, 7]], SamplingParams(prompt_logprobs=1, max_tokens=2), use_tqdm=False)
    assert bad.outputs[0].error == "request 0: the logits that predict prompt token 7 hold NaN"
    assert bad.prompt_logprobs is None
    assert good.prompt_logprobs is not None and len(good.prompt_logprobs) == 2


def test_ids_that_no_token_has_are_never_drawn_nor_biased(pair: tuple[LLM, StubWorker]) -> None:
    llm, _ = pair
    (output,) = llm.generate([[5]], SamplingParams(logit_bias={VOCAB: 1.0}), use_tqdm=False)
    assert "logit_bias: got 300; accepted: integers from 0 to 299" in (output.outputs[0].error or "")
