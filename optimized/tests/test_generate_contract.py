"""What generate promises: a request's output depends on that request alone, and its parts agree with each other."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimized import LLM, RequestOutput, SamplingParams
from optimized.tests.stub import CONTEXT, VOCAB, StubWorker, model_folder, stub_llm
from optimized.tokenizer import Tokenizer

pytestmark = pytest.mark.ci

EOS = 1


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[LLM, StubWorker]:
    return stub_llm(monkeypatch, model_folder(tmp_path))


@pytest.fixture
def llm(stub: tuple[LLM, StubWorker]) -> LLM:
    return stub[0]


def random_requests(rng: np.random.Generator, count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts and parameters of every kind."""
    prompts = [rng.integers(2, VOCAB, size=rng.integers(1, 50)).tolist() for _ in range(count)]
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 0.5, 1.0, 2.0])),
            top_k=int(rng.choice([0, 1, 5, 50])),
            top_p=float(rng.choice([1.0, 0.9, 0.3])),
            min_p=float(rng.choice([0.0, 0.2])),
            max_tokens=int(rng.integers(1, 40)),
            min_tokens=0,
            n=int(rng.integers(1, 4)),
            stop=["a", "th"][: rng.integers(0, 3)],
            stop_token_ids=rng.integers(2, VOCAB, size=3).tolist(),
            seq_seed=int(rng.integers(2**63)) * 2,
            logprobs=[None, 0, 2][rng.integers(3)],
        )
        for _ in range(count)
    ]
    return prompts, params


def essence(outputs: list[RequestOutput]) -> list[Any]:
    return [(one.prompt_token_ids, one.outputs) for one in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1, "max_num_batched_tokens": 96},
        {"max_num_seqs": 3, "max_num_batched_tokens": 7},
        {"max_num_seqs": 64, "max_num_batched_tokens": 4096},
        {"max_num_seqs": 16, "page_size": 4, "num_pages": 28},
        {"max_num_seqs": 16, "page_size": 1, "num_pages": 100},
    ],
)
def test_batch_chunks_and_preemption_do_not_matter(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = model_folder(tmp_path)
    prompts, params = random_requests(rng, 24)
    llm, _ = stub_llm(monkeypatch, folder)
    alone = [llm.generate([prompt], one, use_tqdm=False)[0] for prompt, one in zip(prompts, params, strict=True)]
    other, _ = stub_llm(monkeypatch, folder, **options)
    together = other.generate(prompts, params, use_tqdm=False)
    assert essence(together) == essence(alone)
    if "num_pages" in options:
        assert other._engine._scheduler.num_preemptions > 0
        assert sum(one.metrics.num_preemptions for one in together if one.metrics) > 0
    other._engine.check_idle()


def test_ids_text_and_logprobs_agree(llm: LLM, rng: np.random.Generator) -> None:
    prompts, params = random_requests(rng, 40)
    tokenizer = llm.get_tokenizer()
    assert isinstance(tokenizer, Tokenizer)
    for output, one in zip(llm.generate(prompts, params, use_tqdm=False), params, strict=True):
        assert [completion.index for completion in output.outputs] == list(range(one.n))
        for completion in output.outputs:
            text = tokenizer.decode(completion.token_ids)
            if isinstance(completion.stop_reason, str):
                assert text.startswith(completion.text + completion.stop_reason)
            elif completion.finish_reason == "stop":
                assert completion.text == tokenizer.decode(completion.token_ids[:-1])
            else:
                assert completion.text == text
                assert len(completion.token_ids) == one.max_tokens
            if one.logprobs is None:
                assert completion.logprobs is completion.cumulative_logprob is None
            else:
                check_logprobs(completion, one.logprobs)


def check_logprobs(completion: Any, count: int) -> None:
    assert len(completion.logprobs) == len(completion.token_ids)
    total = 0.0
    for token, reported in zip(completion.token_ids, completion.logprobs, strict=True):
        total += reported[token].logprob
        ranks = sorted(one.rank for one in reported.values())
        assert ranks[:count] == list(range(1, count + 1))
        assert len(reported) == count + (reported[token].rank > count)
        assert all(one.logprob == np.float32(one.logprob) <= 0 for one in reported.values())
    assert math.isclose(total, completion.cumulative_logprob)


def test_sample_i_is_the_same_for_every_n(llm: LLM) -> None:
    three = llm.generate([[5, 6]], SamplingParams(n=3, seq_seed=11), use_tqdm=False)[0].outputs
    one = llm.generate([[5, 6]], SamplingParams(n=1, seq_seed=11), use_tqdm=False)[0].outputs
    assert three[0] == one[0]
    assert len({tuple(sample.token_ids) for sample in three}) == 3


def test_a_drawn_seed_is_recorded_and_repeats_the_text(llm: LLM) -> None:
    first, second = llm.generate([[5, 6], [5, 6]], SamplingParams(max_tokens=30), use_tqdm=False)
    assert first.metrics is not None
    assert second.metrics is not None
    assert first.metrics.seq_seed != second.metrics.seq_seed
    assert first.outputs != second.outputs
    again = llm.generate([[5, 6]], SamplingParams(max_tokens=30, seq_seed=first.metrics.seq_seed), use_tqdm=False)
    assert again[0].outputs == first.outputs


def test_an_engine_seed_repeats_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    runs = [stub_llm(monkeypatch, folder, seed=5)[0].generate([[5]] * 3, use_tqdm=False) for _ in range(2)]
    assert essence(runs[0]) == essence(runs[1])
    assert len({tuple(one.outputs[0].token_ids) for one in runs[0]}) == 3


def test_the_context_limit_ends_a_request_by_length(llm: LLM) -> None:
    params = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0)
    outputs = llm.generate([[5], [5] * (CONTEXT - 1)], params, use_tqdm=False)
    for output in outputs:
        assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == CONTEXT
        assert output.outputs[0].finish_reason == "length"


class Script:
    """A stub whose most likely continuation is written down."""

    def __init__(self, worker: StubWorker, prompt: list[int], tokens: list[int]) -> None:
        self.prompt, self.tokens = prompt, tokens
        self._plain = worker.logits
        worker.logits = self.logits  # type: ignore[method-assign]

    def logits(self, tokens: list[int]) -> Any:
        row = self._plain(tokens)
        done = len(tokens) - len(self.prompt)
        if tokens[: len(self.prompt)] == self.prompt and 0 <= done < len(self.tokens):
            row[self.tokens[done]] = 100.0
        return row


GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6}


def test_eos_ends_without_a_stop_reason_and_is_no_text(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    Script(worker, [9], [70, 71, EOS, 72, 73, 74])
    completion = llm.generate([[9]], SamplingParams(**GREEDY), use_tqdm=False)[0].outputs[0]
    assert (completion.token_ids, completion.finish_reason, completion.stop_reason) == ([70, 71, EOS], "stop", None)
    ignored = llm.generate([[9]], SamplingParams(**GREEDY, ignore_eos=True), use_tqdm=False)[0].outputs[0]
    assert (len(ignored.token_ids), ignored.finish_reason) == (6, "length")


def test_a_stop_token_id_is_the_reason_and_is_no_text(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    Script(worker, [9], [70, 71, 72])
    completion = llm.generate([[9]], SamplingParams(**GREEDY, stop_token_ids=[71]), use_tqdm=False)[0].outputs[0]
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    assert (completion.token_ids, completion.stop_reason) == ([70, 71], 71)
    assert completion.text == tokenizer.decode([70])


def test_no_stop_id_is_drawn_before_min_tokens(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    Script(worker, [9], [EOS, 71, 72, EOS])
    params = SamplingParams(**GREEDY, min_tokens=3, stop_token_ids=[71])
    tokens = llm.generate([[9]], params, use_tqdm=False)[0].outputs[0].token_ids
    assert not {EOS, 71} & set(tokens[:3])
    assert tokens[3] == EOS


def test_a_stop_string_over_tokens_cuts_the_text_and_keeps_the_ids(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    written = tokenizer.encode("xy€a€b")
    Script(worker, [9], written)
    params = SamplingParams(temperature=0.0, max_tokens=len(written), stop=["q", "€b", "a€"], logprobs=0)
    completion = llm.generate([[9]], params, use_tqdm=False)[0].outputs[0]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("xy€", "stop", "a€")
    assert completion.token_ids == tokenizer.encode("xy€a€")
    assert len(completion.logprobs or []) == len(completion.token_ids)
    llm._engine.check_idle()


def test_a_stop_string_in_the_last_token_wins_over_length(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    Script(worker, [9], tokenizer.encode("xyz"))
    completion = llm.generate([[9]], SamplingParams(temperature=0, max_tokens=3, stop="z"), use_tqdm=False)[0].outputs[
        0
    ]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("xy", "stop", "z")


def test_calls_from_threads_wait_for_each_other(llm: LLM, rng: np.random.Generator) -> None:
    prompts, params = random_requests(rng, 8)
    expected = essence(llm.generate(prompts, params, use_tqdm=False))
    results: list[list[Any]] = []

    def call() -> None:
        results.append(essence(llm.generate(prompts, params, use_tqdm=False)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_the_progress_bar_goes_to_stderr_and_shows_tokens_a_second(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.generate([[5], [-1]], SamplingParams(seq_seed=0), use_tqdm=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tokens/s" in captured.err
    assert "2/2" in captured.err
