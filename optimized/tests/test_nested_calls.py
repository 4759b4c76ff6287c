"""Calls from inside a call: an error at once, never a wait for oneself; the running call goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimized import LLM, SamplingParams
from optimized.tests.stub import model_folder, stub_llm
from reference.spec.errors import EngineError, RequestError

pytestmark = pytest.mark.ci
PARAMS = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LLM:
    return stub_llm(monkeypatch, model_folder(tmp_path))[0]


def again(llm: LLM) -> None:
    with pytest.raises(EngineError, match="inside a call of the same LLM"):
        llm.generate([[5]], PARAMS, use_tqdm=False)


def test_between_the_outputs_of_a_stream(llm: LLM) -> None:
    outputs = llm.stream([([3], PARAMS), ([4], PARAMS)])
    first = next(outputs)
    again(llm)
    assert [first.request_id, *(output.request_id for output in outputs)] == ["0", "1"]
    assert len(llm.generate([[5]], PARAMS, use_tqdm=False)) == 1


def test_from_the_step_callback_and_from_the_source_of_requests(llm: LLM) -> None:
    def source() -> Iterator[tuple[list[int], SamplingParams]]:
        again(llm)
        yield [3], PARAMS

    assert len(list(llm.stream(source(), lambda _: again(llm)))) == 1


def test_an_abort_before_a_call_does_not_reach_into_it(llm: LLM) -> None:
    llm.abort("0")
    assert llm.generate([[5]], PARAMS, use_tqdm=False)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("entry", [("a", None), ("a",), "ab", None, ("a", PARAMS, 1), ["a", PARAMS], ("a", {})])
def test_a_stream_of_anything_but_pairs_is_refused(llm: LLM, entry: Any) -> None:
    with pytest.raises(RequestError, match="requests: got"):
        list(llm.stream([entry]))
    llm._engine.check_idle()
