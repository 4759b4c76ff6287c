"""Whatever ends a call half-way, the next call works and nothing has leaked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optimized import LLM, EngineError, SamplingParams
from optimized.engine.output_processor import OutputProcessor
from optimized.engine.verifier import Verifier
from optimized.tests.stub import StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci

PROMPTS = [[5, 6, 7], [8] * 30, [9], [10, 11], [12] * 50, [13]]
PARAMS = SamplingParams(seq_seed=1, max_tokens=12, n=2, stop="zz")


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[LLM, StubWorker]:
    return stub_llm(monkeypatch, model_folder(tmp_path), async_scheduling=request.param)


def texts(llm: LLM) -> list[Any]:
    return [one.outputs for one in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


class FailAt:
    """Wraps a function so that its call number `at` raises."""

    def __init__(self, function: Any, at: int, error: BaseException, *, after: bool) -> None:
        self.function, self.left, self.error, self.after = function, at, error, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise self.error
        result = self.function(*args, **kwargs)
        if self.left == 0:
            raise self.error
        return result


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ValueError("boom"), MemoryError()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("at", [1, 2, 5, 9])
@pytest.mark.parametrize("place", ["forward", "forward_after", "prepare", "draw", "take"])
def test_an_error_anywhere_leaves_the_engine_as_new(
    stub: tuple[LLM, StubWorker], monkeypatch: pytest.MonkeyPatch, place: str, at: int, error: BaseException
) -> None:
    llm, worker = stub
    expected = texts(llm)
    with monkeypatch.context() as patch:
        if place.startswith("forward"):
            patch.setattr(worker, "forward", FailAt(worker.forward, at, error, after=place == "forward_after"))
        elif place == "prepare":
            patch.setattr(worker, "prepare", FailAt(worker.prepare, at, error, after=True))
        elif place == "draw":
            launch = FailAt(Verifier.launch, at, error, after=False)
            patch.setattr(Verifier, "launch", lambda self, *args: launch(self, *args))
        else:
            take = FailAt(OutputProcessor.take, at, error, after=True)
            patch.setattr(OutputProcessor, "take", lambda self, one: take(self, one))
        with pytest.raises(type(error)):
            texts(llm)
        llm._engine.check_idle()
    assert texts(llm) == expected
    llm._engine.check_idle()


def test_a_consumer_that_stops_early_leaves_the_engine_as_new(stub: tuple[LLM, StubWorker]) -> None:
    llm, _ = stub
    expected = texts(llm)
    outputs = llm.stream((prompt, PARAMS) for prompt in PROMPTS)
    assert next(outputs).outputs == expected[0]
    outputs.close()
    llm._engine.check_idle()
    assert texts(llm) == expected


def test_a_source_that_raises_leaves_the_engine_as_new(stub: tuple[LLM, StubWorker]) -> None:
    llm, _ = stub
    expected = texts(llm)

    def source() -> Iterator[tuple[Any, SamplingParams]]:
        yield PROMPTS[0], PARAMS
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(llm.stream(source()))
    llm._engine.check_idle()
    assert texts(llm) == expected


def test_a_stream_of_any_length_runs_in_bounded_memory(stub: tuple[LLM, StubWorker]) -> None:
    llm, _ = stub
    taken = 0

    def source() -> Iterator[tuple[Any, SamplingParams]]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield [5], SamplingParams(seq_seed=1, max_tokens=1 if taken > 1 else 60, ignore_eos=True)

    for given, _output in enumerate(llm.stream(source())):
        assert taken - given <= 16 * llm.config.max_num_seqs
    assert taken == 1000


def test_a_stall_is_an_error_and_no_hang(stub: tuple[LLM, StubWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    llm, _ = stub

    class Stalled:
        def __getattr__(self, name: str) -> Any:
            return getattr(scheduler, name)

        def schedule(self) -> None:
            return None

    scheduler = llm._engine._scheduler
    monkeypatch.setattr(llm._engine, "_scheduler", Stalled())
    with pytest.raises(EngineError, match="no step can be made"):
        llm.generate([[5]], use_tqdm=False)
    assert len(texts(llm)) == len(PROMPTS)
