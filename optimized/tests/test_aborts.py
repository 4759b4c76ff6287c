"""Aborting requests by name, at any moment: what their outputs hold, and that nothing else changes or leaks."""

from __future__ import annotations

import gc
import random
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from optimized import LLM, SamplingParams
from optimized.tests.stub import StubWorker, model_folder, stub_llm
from reference.spec.errors import RequestError


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LLM:
    return stub_llm(monkeypatch, model_folder(tmp_path), max_num_seqs=4, num_pages=24)[0]


def requests(count: int, seed: int) -> list[tuple[list[int], SamplingParams]]:
    """Mixed lengths, greedy and sampled."""
    rng = random.Random(seed)
    return [
        (
            [rng.randrange(2, 290) for _ in range(rng.randrange(1, 30))],
            SamplingParams(
                max_tokens=rng.randrange(1, 24), temperature=rng.choice([0.0, 1.0]), seq_seed=index, ignore_eos=True
            ),
        )
        for index in range(count)
    ]


@pytest.mark.ci
@pytest.mark.parametrize("moment", range(0, 30, 3))
def test_an_aborted_request_keeps_its_prefix_and_its_neighbours_keep_everything(llm: LLM, moment: int) -> None:
    batch = requests(12, seed=moment)
    whole = [output.outputs[0].token_ids for output in llm.stream(batch)]
    victims = {12 + index for index in random.Random(moment).sample(range(12), 4)}
    steps = 0

    def on_step(_: int) -> None:
        nonlocal steps
        if steps == moment:
            for number in victims:
                llm.abort(str(number))
        steps += 1

    outputs = list(llm.stream(batch, on_step))
    assert [output.request_id for output in outputs] == [str(12 + index) for index in range(12)]
    for index, (output, tokens) in enumerate(zip(outputs, whole, strict=True)):
        one = output.outputs[0]
        if one.finish_reason == "abort":
            assert 12 + index in victims and one.token_ids == tokens[: len(one.token_ids)]
        else:
            assert one.token_ids == tokens
    llm._engine.check_idle()


@pytest.mark.ci
def test_requests_that_no_step_has_seen_yet_are_aborted_too(llm: LLM) -> None:
    victims = {str(number) for number in range(1, 40)}
    aborting = iter(victims)

    def entries() -> Iterator[tuple[list[int], SamplingParams]]:
        for victim in aborting:
            llm.abort(victim)
        yield from requests(40, seed=1)

    outputs = list(llm.stream(entries()))
    assert {output.request_id for output in outputs if output.outputs[0].finish_reason == "abort"} == victims
    assert all(output.outputs[0].token_ids == [] for output in outputs[1:])


@pytest.mark.ci
def test_every_request_is_counted_once_by_how_it_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    llm, worker = stub_llm(monkeypatch, model_folder(tmp_path))
    worker.broken[(9,)] = float("nan")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    list(llm.stream([([7], params), ([9], params), ([-1], params), ([8], params)], lambda _: llm.abort("3")))
    counts = llm.statistics
    assert (counts.finished_requests, counts.failed_requests, counts.aborted_requests) == (1, 2, 1)


@pytest.mark.ci
def test_every_sample_of_a_request_ends_with_it(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=20, ignore_eos=True, seq_seed=5)
    steps: list[int] = []

    def abort_in_the_fifth_step(completed: int) -> None:
        steps.append(completed)
        if len(steps) == 5:
            llm.abort("0")

    outputs = list(llm.stream([([7], params)], abort_in_the_fifth_step))
    assert [one.finish_reason for one in outputs[0].outputs] == ["abort"] * 3


@pytest.mark.ci
def test_an_abort_outside_a_call_touches_no_later_call(llm: LLM) -> None:
    batch = requests(4, seed=9)
    list(llm.stream(batch, lambda _: llm.abort("7")))
    assert all(output.outputs[0].finish_reason == "length" for output in llm.stream(batch))


@pytest.mark.ci
@pytest.mark.parametrize("bad", [3, -1, "-1", "x", "", None, True, "1.5", "٣"])
def test_what_is_no_number_of_a_request_is_refused(llm: LLM, bad: Any) -> None:
    with pytest.raises(RequestError, match="request_id: got"):
        llm.abort(bad)


@pytest.mark.ci
def test_aborts_from_another_thread(llm: LLM) -> None:
    batch = requests(200, seed=4)
    whole = [output.outputs[0].token_ids for output in llm.stream(batch)]
    stop = threading.Event()

    def disturb() -> None:
        rng = random.Random(0)
        while not stop.is_set():
            llm.abort(str(200 + rng.randrange(200)))
            stop.wait(0.001)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        outputs = list(llm.stream(batch))
    finally:
        stop.set()
        thread.join()
    for output, tokens in zip(outputs, whole, strict=True):
        assert output.outputs[0].token_ids == tokens[: len(output.outputs[0].token_ids)]
    llm._engine.check_idle()


def soak(llm: LLM, count: int, aborted_share: float, seed: int) -> dict[str, int]:
    """Runs `count` random requests, aborting a share of them at random moments; counts finish reasons."""
    rng = random.Random(seed)
    first = llm._next_request
    planned: dict[int, list[str]] = {}
    step = 0

    def entries() -> Iterator[tuple[list[int], SamplingParams]]:
        for index in range(count):
            if rng.random() < aborted_share:
                planned.setdefault(step + rng.randrange(6), []).append(str(first + index))
            prompt = [rng.randrange(2, 290)] * rng.randrange(1, 12)
            yield prompt, SamplingParams(max_tokens=rng.randrange(2, 10), temperature=0, ignore_eos=True)

    def on_step(_: int) -> None:
        nonlocal step
        for request_id in planned.pop(step, []):
            llm.abort(request_id)
        step += 1

    reasons: dict[str, int] = {}
    for output in llm.stream(entries(), on_step):
        reason = output.outputs[0].finish_reason or "none"
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def resident() -> int:
    """Bytes of memory that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.slow
def test_a_hundred_thousand_requests_with_aborts_leave_everything_free_and_memory_flat(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    row = torch.linspace(0, 1, 300, dtype=torch.float64)
    monkeypatch.setattr(StubWorker, "logits", lambda self, tokens: row.roll(len(tokens)))
    llm = stub_llm(monkeypatch, model_folder(tmp_path), max_num_seqs=64, max_num_batched_tokens=512, num_pages=100)[0]
    levels = []
    for part in range(10):
        reasons = soak(llm, 10_000, aborted_share=0.3, seed=part)
        assert sum(reasons.values()) == 10_000 and set(reasons) == {"abort", "length"}
        assert 0.2 < reasons["abort"] / 10_000 < 0.35
        llm._engine.check_idle()
        gc.collect()
        levels.append(resident())
    assert max(levels[1:]) - levels[1] < 8 * 2**20
