"""The bundled checkpoint through the whole engine: the contract of the stub tests, with real caches and weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimized import LLM, ConfigError, RequestOutput, SamplingParams

pytestmark = pytest.mark.ci

OPTIONS: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "page_size": 16,
    "max_model_len": 160,
    "num_pages": 40,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", **OPTIONS)


def requests(rng: np.random.Generator, llm: LLM, max_tokens: int) -> tuple[list[Any], list[SamplingParams]]:
    """Text, short and long prompts of ids; greedy and sampled."""
    vocab = llm.model_config.vocab_size
    prompts: list[Any] = ["In the beginning", *(rng.integers(3, vocab, size=n).tolist() for n in (1, 90, 17, 33))]
    shared: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": 2, "ignore_eos": True}
    return prompts, [SamplingParams(temperature=i % 2, seq_seed=i, n=1 + i % 2, **shared) for i in range(5)]


def essence(outputs: list[RequestOutput]) -> list[Any]:
    return [(one.prompt, one.prompt_token_ids, one.outputs) for one in outputs]


def test_bad_requests_interruptions_and_neighbours_change_no_bit(
    llm: LLM, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, params = requests(rng, llm, 6)
    alone = essence([llm.generate([p], one, use_tqdm=False)[0] for p, one in zip(prompts, params, strict=True)])
    bad = [[-1], "", [llm.model_config.vocab_size], [7] * 160, [True]]
    mixed = [one for pair in zip(bad, prompts, strict=True) for one in pair]
    outputs = llm.generate(mixed, [one for one in params for _ in range(2)], use_tqdm=False)
    assert essence(outputs[1::2]) == alone
    assert {one.outputs[0].finish_reason for one in outputs[::2]} == {"error"}
    steps = 0
    forward = llm._engine._worker.forward

    def interrupted(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        logits = forward(*arguments)
        if steps == 4:
            raise KeyboardInterrupt
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(llm._engine._worker, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, params, use_tqdm=False)
    llm._engine.check_idle()
    assert essence(llm.generate(prompts, params, use_tqdm=False)) == alone


def test_preemption_and_chunks_change_no_bit(llm: LLM, rng: np.random.Generator) -> None:
    prompts, params = requests(rng, llm, 24)
    expected = essence(llm.generate(prompts, params, use_tqdm=False))
    short = LLM("tiny", **{**OPTIONS, "num_pages": 10, "max_num_batched_tokens": 11, "max_num_seqs": 8})
    assert essence(short.generate(prompts, params, use_tqdm=False)) == expected
    assert short._engine._scheduler.num_preemptions > 0
    short._engine.check_idle()


def test_an_option_that_does_not_fit_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len: got 1000000; accepted: at most"):
        LLM("tiny", max_model_len=1000000)
    with pytest.raises(ConfigError, match=r"unknown engine option 'max_seqs'"):
        LLM("tiny", max_seqs=4)


def test_the_command_line_runs_it_from_jsonl(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "In the beginning", "custom_id": "x"}\nnot json\n')
    options = [
        "--model",
        "tiny",
        "--input",
        str(source),
        "--max-tokens",
        "3",
        "--temperature",
        "0",
        "--max-num-seqs",
        "2",
    ]
    command = [sys.executable, "-m", "optimized", "generate", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert len(first["outputs"][0]["token_ids"]) == 3
    assert (second["index"], second["error"]["kind"]) == (1, "not_json")
