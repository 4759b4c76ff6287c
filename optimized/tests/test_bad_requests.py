"""Bad requests and bad arguments: what each becomes, and that nobody else notices.

The worker is a stub whose logits depend on a sequence's own tokens only, so a neighbour that differs was touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimized import LLM, RequestError, RequestOutput, SamplingParams, UnsupportedError
from optimized.tests.stub import CONTEXT, VOCAB, StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci

IDS = f"accepted: integers from 0 to {VOCAB - 1}"
GOOD: list[Any] = ["the hand", [5, 6, 7], {"prompt_token_ids": [9] * 40}, {"prompt": "and the"}]
BAD: list[tuple[Any, str]] = [
    ("", "prompt: got ''; accepted: a string of at least one character"),
    ([], "prompt_token_ids: got []; accepted: at least one token id"),
    ([-1], f"prompt_token_ids[0]: got -1; {IDS}"),
    ([5, VOCAB], f"prompt_token_ids[1]: got {VOCAB}; {IDS}"),
    ([2**63], f"prompt_token_ids[0]: got {2**63}; {IDS}"),
    ([10**200], f"prompt_token_ids[0]: got an integer of 665 bits; {IDS}"),
    ([True], f"prompt_token_ids[0]: got True; {IDS}"),
    ([np.True_], f"prompt_token_ids[0]: got np.True_; {IDS}"),
    ([1.5], f"prompt_token_ids[0]: got 1.5; {IDS}"),
    ([1.0], f"prompt_token_ids[0]: got 1.0; {IDS}"),
    ([float("nan")], f"prompt_token_ids[0]: got nan; {IDS}"),
    (["x"], f"prompt_token_ids[0]: got 'x'; {IDS}"),
    ([None], f"prompt_token_ids[0]: got None; {IDS}"),
    ([[5]], f"prompt_token_ids[0]: got [5]; {IDS}"),
    (np.array([5.0]), f"prompt_token_ids[0]: got 5.0; {IDS}"),
    (np.array([[5, 6]]), f"prompt_token_ids[0]: got [5, 6]; {IDS}"),
    ([5] * CONTEXT, f"prompt: got {CONTEXT} tokens; accepted: at most {CONTEXT - 1}"),
    ("a\ud800", "accepted: text without lone surrogates"),
    (None, "prompt: got None; accepted: a string, a list of token ids"),
    (5, "prompt: got 5; accepted: a string, a list of token ids"),
    (b"the", "prompt: got b'the'; accepted: a string, a list of token ids"),
    ({}, "prompt: got keys []; accepted: exactly one of"),
    ({"prompt_token_ids": None}, "prompt: got None; accepted: a string, a list of token ids"),
    ({"prompt": 5}, "prompt: got 5; accepted: a string"),
    ({"prompt": "a", "prompt_token_ids": [5]}, "accepted: exactly one of"),
    ({"prompt_token_id": [5]}, "unknown key 'prompt_token_id'; nearest is 'prompt_token_ids'"),
]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[LLM, StubWorker]:
    return stub_llm(monkeypatch, model_folder(tmp_path))


def params(index: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.7 * (index % 2), seq_seed=index, max_tokens=9, logprobs=2, **more)


def essence(output: RequestOutput) -> Any:
    """Everything but the id and the times."""
    return output.prompt, output.prompt_token_ids, output.outputs, output.finished


def test_each_bad_request_says_what_is_wrong(stub: tuple[LLM, StubWorker]) -> None:
    llm, worker = stub
    outputs = llm.generate([prompt for prompt, _ in BAD], use_tqdm=False)
    assert len(outputs) == len(BAD)
    for output, (_, message) in zip(outputs, BAD, strict=True):
        (completion,) = output.outputs
        assert message in str(completion.error)
        assert str(completion.error).startswith(f"request {output.request_id}: ")
        assert (completion.finish_reason, completion.text, completion.token_ids) == ("error", "", [])
    assert worker.steps == 0


def test_good_neighbours_are_bit_identical_to_a_run_without_the_bad_ones(stub: tuple[LLM, StubWorker]) -> None:
    llm, _ = stub
    good = [essence(one) for one in llm.generate(GOOD, [params(i) for i in range(4)], use_tqdm=False)]
    prompts: list[Any] = []
    settings: list[SamplingParams] = []
    for i, (prompt, _) in enumerate(BAD):
        prompts += [prompt, GOOD[i % 4]]
        settings += [params(77), params(i % 4)]
    outputs = llm.generate(prompts, settings, use_tqdm=False)
    assert [essence(one) for one in outputs[1::2]] == [good[i % 4] for i in range(len(BAD))]
    assert {one.outputs[0].finish_reason for one in outputs[::2]} == {"error"}


def test_bad_requests_shift_no_drawn_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    alone = stub_llm(monkeypatch, folder, seed=3)[0].generate(GOOD, use_tqdm=False)
    mixed = stub_llm(monkeypatch, folder, seed=3)[0].generate(["", GOOD[0], [-1], *GOOD[1:]], use_tqdm=False)
    assert [essence(mixed[i]) for i in (1, 3, 4, 5)] == [essence(one) for one in alone]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_of_bad_logits_fails_its_own_sequence_only(stub: tuple[LLM, StubWorker], value: float) -> None:
    llm, worker = stub
    clean = llm.generate(GOOD, [params(i) for i in range(4)], use_tqdm=False)
    tokens = clean[1].outputs[0].token_ids
    worker.broken[(5, 6, 7, *tokens[:3])] = value
    outputs = llm.generate(GOOD, [params(i) for i in range(4)], use_tqdm=False)
    assert [essence(outputs[i]) for i in (0, 2, 3)] == [essence(clean[i]) for i in (0, 2, 3)]
    failed = outputs[1].outputs[0]
    assert (failed.finish_reason, failed.token_ids, len(failed.logprobs or [])) == ("error", tokens[:3], 3)
    assert "the logits hold" in str(failed.error) or "every token is masked" in str(failed.error)
    llm._engine.check_idle()


def test_a_request_that_never_fits_is_refused_with_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    llm, _ = stub_llm(monkeypatch, model_folder(tmp_path), num_pages=4)
    outputs = llm.generate([[5] * 30, [5, 6]], SamplingParams(max_tokens=4, seq_seed=0), use_tqdm=False)
    assert "request 0: prompt of 30 tokens with max_tokens = 4: " in str(outputs[0].outputs[0].error)
    assert outputs[1].outputs[0].finish_reason == "length"


def test_text_needs_a_tokenizer_and_ids_do_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    llm, _ = stub_llm(monkeypatch, model_folder(tmp_path, tokenizer=False))
    outputs = llm.generate(["the", [5]], SamplingParams(seq_seed=0), use_tqdm=False)
    assert "the checkpoint has no tokenizer.json; accepted: token ids" in str(outputs[0].outputs[0].error)
    assert (outputs[1].outputs[0].text, len(outputs[1].outputs[0].token_ids)) == ("", 16)
    stopped = llm.generate([[5]], SamplingParams(stop="a"), use_tqdm=False)
    assert "stop: got ('a',), but the checkpoint has no tokenizer.json" in str(stopped[0].outputs[0].error)


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        (None, None, "prompts: got None; accepted: a string, a list of token ids"),
        (7, None, "prompts: got 7; accepted"),
        (b"the", None, "prompts: got b'the'; accepted"),
        ({"the"}, None, "prompts: got {'the'}; accepted"),
        (["a", "b"], [SamplingParams()], "sampling_params: got a list of 1; accepted: a list of 2"),
        (["a"], [SamplingParams()] * 2, "sampling_params: got a list of 2; accepted: a list of 1"),
        (["a"], [], "sampling_params: got a list of 0; accepted: a list of 1"),
        (["a"], {"n": 1}, "sampling_params: got {'n': 1}; accepted: SamplingParams"),
        (["a", "b"], [SamplingParams(), None], "sampling_params[1]: got None; accepted: SamplingParams"),
        (["a"], SamplingParams, "accepted: SamplingParams"),
    ],
)
def test_a_bad_argument_raises_before_anything_runs(
    stub: tuple[LLM, StubWorker], prompts: Any, sampling: Any, message: str
) -> None:
    llm, worker = stub
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, sampling, use_tqdm=False)
    assert message in str(caught.value)
    assert worker.steps == 0
    assert [one.request_id for one in llm.generate(["a"], use_tqdm=False)] == ["0"]


def test_generate_takes_no_unknown_keyword(stub: tuple[LLM, StubWorker]) -> None:
    with pytest.raises(TypeError, match="temprature"):
        stub[0].generate(["a"], temprature=1)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="use_tqdm: got 1; accepted: True or False"):
        stub[0].generate(["a"], use_tqdm=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("max_tokens", -1), ("temperature", float("nan")), ("temperature", -1), ("temprature", 1)],
)
def test_bad_sampling_parameters_are_refused_where_they_are_made(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_structured_output_without_its_package_names_the_extra(
    stub: tuple[LLM, StubWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = SamplingParams(so_args={"schema_type": "json", "schema": None})
    for settings in (refused, [SamplingParams(), refused]):
        with pytest.raises(UnsupportedError, match=r"so_args .*counterpoint\[structured\]"):
            stub[0].generate(["a", "b"], settings, use_tqdm=False)
    streamed = list(stub[0].stream([("a", refused), ("a", SamplingParams(max_tokens=1))]))
    assert [output.outputs[0].finish_reason for output in streamed] == ["error", "length"]
    assert "so_args" in (streamed[0].outputs[0].error or "")


def test_no_prompts_give_no_outputs(stub: tuple[LLM, StubWorker]) -> None:
    assert stub[0].generate([], use_tqdm=False) == []
    assert stub[0].generate((), [], use_tqdm=False) == []


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ("the", 1),
        ([5, 6], 1),
        ((5, 6), 1),
        (np.array([5, 6]), 1),
        ({"prompt_token_ids": [5, 6]}, 1),
        ([1.5], 1),
        ([True], 1),
        (["a", 5], 2),
        ([5, [6]], 2),
        ([[5], "a", (6,), np.array([7])], 4),
        ([None], 1),
    ],
)
def test_one_output_for_each_prompt(stub: tuple[LLM, StubWorker], prompts: Any, count: int) -> None:
    assert len(stub[0].generate(prompts, use_tqdm=False)) == count
