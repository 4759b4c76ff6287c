"""Steps launched before the tokens of the one before are known: nothing shows but the lag itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized import LLM, SamplingParams
from optimized.engine.device_queue import DeviceQueue
from optimized.tests.stub import StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci


def random_requests(rng: np.random.Generator, count: int) -> tuple[list[Any], list[SamplingParams]]:
    """Prompts, and parameters that end at ids, strings and lengths, greedy and sampled."""
    prompts = [rng.integers(0, 256, size=rng.integers(1, 50)).tolist() for _ in range(count)]
    params = [
        SamplingParams(
            temperature=float(rng.choice([0.0, 1.0])),
            max_tokens=int(rng.integers(1, 40)),
            min_tokens=int(rng.integers(0, 2)),
            stop=[["the", "Q"], []][int(rng.integers(0, 2))],
            stop_token_ids=rng.integers(0, 300, size=6).tolist(),
            n=int(rng.integers(1, 3)),
            logprobs=[None, 2][int(rng.integers(0, 2))],
            presence_penalty=float(rng.choice([0.0, 1.0])),
            seq_seed=int(rng.integers(0, 2**63)),
        )
        for _ in range(count)
    ]
    return prompts, params


def essence(llm: LLM, prompts: list[Any], params: list[SamplingParams]) -> list[Any]:
    outputs = [one.outputs for one in llm.generate(prompts, params, use_tqdm=False)]
    llm._engine.check_idle()
    return outputs


class Recorded:
    """A stub's steps: the ids of the steps whose tokens were open, and the threads that ran them."""

    def __init__(self, worker: StubWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Any] = []
        self.threads: set[str] = set()
        self.forward = worker.forward
        monkeypatch.setattr(worker, "forward", self)

    def __call__(self, step: Any) -> torch.Tensor:
        self.plans.append(step.plan)
        self.threads.add(threading.current_thread().name)
        return self.forward(step)

    @property
    def num_open(self) -> int:
        return sum(bool((plan.tokens < 0).any()) for plan in self.plans)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 16, "page_size": 4, "num_pages": 28},
        {"max_num_seqs": 16, "page_size": 1, "num_pages": 100, "max_num_batched_tokens": 17},
    ],
)
def test_asynchronous_or_not_is_the_same(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = model_folder(tmp_path)
    prompts, params = random_requests(rng, 24)
    found = []
    for on in (False, True):
        llm, worker = stub_llm(monkeypatch, folder, async_scheduling=on, **options)
        recorded = Recorded(worker, monkeypatch)
        found.append(essence(llm, prompts, params))
        decodes = sum(plan.kind == "decode" for plan in recorded.plans)
        assert (recorded.num_open > decodes // 3) is on
        assert all(name.startswith("counterpoint-device") is on for name in recorded.threads)
        if "num_pages" in options:
            assert llm._engine._scheduler.num_preemptions > 0
    assert found[0] == found[1]


def test_the_host_goes_on_while_the_device_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    llm, worker = stub_llm(monkeypatch, model_folder(tmp_path))
    forward, scheduler = worker.forward, llm._engine._scheduler
    planned = {step: threading.Event() for step in range(20)}
    overtaken: list[int] = []

    def waits(step: Any) -> torch.Tensor:
        """Decode steps 2 to 9 of the request's ten steps end only after the next one was planned."""
        number = step.plan.step_id
        if 2 <= number <= 9 and planned[number + 1].wait(timeout=30):
            overtaken.append(number)
        return forward(step)

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(scheduler, name)

        def schedule(self) -> Any:
            plan = scheduler.schedule()
            if plan is not None:
                planned[plan.step_id].set()
            return plan

    monkeypatch.setattr(llm._engine, "_scheduler", Watched())
    monkeypatch.setattr(worker, "forward", waits)
    llm.generate([[5]], SamplingParams(max_tokens=10, ignore_eos=True, seq_seed=1), use_tqdm=False)
    assert overtaken == list(range(2, 10))


def test_ctrl_c_while_the_device_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    llm, worker = stub_llm(monkeypatch, model_folder(tmp_path))
    prompts = [[5, 6], [7]]
    params = [SamplingParams(seq_seed=1, max_tokens=9, ignore_eos=True)] * 2
    expected = essence(llm, prompts, params)
    forward, steps = worker.forward, 0

    def interrupts(step: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        if steps == 5:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
        return forward(step)

    with monkeypatch.context() as patch:
        patch.setattr(worker, "forward", interrupts)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(prompts, params, use_tqdm=False)
    llm._engine.check_idle()
    assert essence(llm, prompts, params) == expected


def test_jobs_run_in_order_and_cancelled_ones_never() -> None:
    queue, order, gate = DeviceQueue(threaded=True), list[int](), threading.Event()
    queue.submit(gate.wait)
    for number in range(3):
        queue.submit(lambda number=number: order.append(number))  # type: ignore[misc]
    queue.cancel()
    last = queue.submit(lambda: order.append(9))
    gate.set()
    last.result(timeout=10)
    assert order == [9]
