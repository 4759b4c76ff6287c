"""The bundled checkpoint on a CUDA device: capturing steps, drafting and the batch change no token and no bit."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch

from optimized import LLM, SamplingParams
from optimized.engine.device_queue import DeviceQueue
from optimized.worker import captured_steps
from optimized.worker.transfer import Download, no_waits, upload, waits_allowed, write

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Any] = {
    "device": "cuda",
    "sync_guard": True,
    "max_num_seqs": 16,
    "max_model_len": 512,
    "page_size": 32,
    "max_num_batched_tokens": 128,
}
DECODE_STEPS = 200


def work(count: int) -> tuple[list[Any], list[SamplingParams]]:
    """Requests of 1 to 200 prompt tokens that end after 4 to 120 more, so that batches grow and shrink; all kinds."""
    rng = np.random.default_rng(41)
    prompts = [rng.integers(3, 1500, size=size).tolist() for size in rng.integers(1, 200, size=count)]
    params = [
        SamplingParams(
            temperature=(0.0, 0.8, 1.0)[i % 3],
            top_p=(1.0, 0.9)[i % 2],
            top_k=(0, 20)[i // 2 % 2],
            frequency_penalty=(0.0, 0.3)[i // 3 % 2],
            seq_seed=i,
            max_tokens=int(length),
            ignore_eos=True,
            logprobs=2,
        )
        for i, length in enumerate(rng.integers(4, 120, size=count))
    ]
    return prompts, params


def generate(prompts: list[Any], params: list[SamplingParams], **options: Any) -> tuple[list[Any], LLM]:
    llm = LLM("tiny", **{**OPTIONS, **options})
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    llm._engine.check_idle()
    assert [one.outputs[0].error for one in outputs] == [None] * len(outputs)
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs) for one in outputs], llm


@pytest.fixture(scope="module")
def captured() -> tuple[list[Any], LLM]:
    return generate(*work(60))


def test_captured_steps_equal_eager_ones_over_changing_batches(captured: tuple[list[Any], LLM]) -> None:
    eager, llm = generate(*work(60), enforce_eager=True)
    assert llm.statistics.steps > DECODE_STEPS
    assert len(captured[1]._engine._worker._runner._captured._graphs) > 4  # type: ignore[attr-defined]
    assert captured[0] == eager


def test_graphs_that_make_room_for_others_change_nothing(
    captured: tuple[list[Any], LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_steps, "MOST_GRAPHS", 2)
    prompts, params = work(60)
    found, llm = generate(prompts[:12], params[:12])
    assert len(llm._engine._worker._runner._captured._graphs) == 2  # type: ignore[attr-defined]
    assert found == captured[0][:12]


def test_a_request_alone_equals_the_request_in_a_batch(captured: tuple[list[Any], LLM]) -> None:
    prompts, params = work(60)
    found, llm = captured
    for i in (0, 7, 20, 33):
        alone = llm.generate([{"prompt_token_ids": prompts[i]}], params[i], use_tqdm=False)[0].outputs[0]
        assert (alone.token_ids, alone.logprobs) == found[i]


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_drafts_are_made_and_verified_alike_captured_and_eager(captured: tuple[list[Any], LLM], rule: str) -> None:
    prompts, params = (some[:10] for some in work(60))
    drafting: dict[str, Any] = {"nextn": 5, "verification": rule}
    found, llm = generate(prompts, params, **drafting)
    graphs = llm._engine._worker._runner._captured._graphs  # type: ignore[attr-defined]
    assert {shape[0] for shape in graphs} == {"forward", "draft"}
    assert found == generate(prompts, params, **drafting, enforce_eager=True)[0]
    assert (found == captured[0][:10]) == (rule == "coupled")


@pytest.mark.parametrize("options", [{"async_scheduling": False}, {"max_num_batched_tokens": 16}, {"max_num_seqs": 3}])
def test_how_requests_are_run_does_not_show(captured: tuple[list[Any], LLM], options: dict[str, Any]) -> None:
    prompts, params = work(60)
    assert generate(prompts[:20], params[:20], **options)[0] == captured[0][:20]


def test_the_memory_plan_is_within_five_percent_of_what_is_allocated_and_never_under() -> None:
    for seqs, nextn in ((16, 0), (256, 0), (16, 5)):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        llm = LLM("tiny", **{**OPTIONS, "max_num_seqs": seqs, "max_num_batched_tokens": 256, "nextn": nextn})
        held = torch.cuda.memory_allocated() - before
        plan = llm._engine._worker.memory_plan.total  # type: ignore[attr-defined]
        assert held <= plan <= 1.05 * held, plan / held
        del llm


def test_numbers_arrive_while_the_device_is_busy() -> None:
    device, busy = torch.device("cuda:0"), torch.ones(4096, 4096, device="cuda")
    target = torch.zeros(3, 8, dtype=torch.int64, device=device)
    for _ in range(20):
        busy = busy @ busy * 1e-4
    kept = []
    with no_waits():
        for step in range(50):
            values = np.full((3, 4), step)
            write(target[:, 2:6], values)
            kept.append(Download(upload(values, device), target))
            values[:] = -1
    for step, one in enumerate(kept):
        uploaded, written = one.wait()
        assert (uploaded == step).all()
        assert (written[:, 2:6] == step).all()


def test_the_guard_sees_a_wait() -> None:
    one, queue = torch.ones(1, device="cuda"), DeviceQueue(threaded=False, guarded=True)
    with pytest.raises(RuntimeError, match="synchronizing"):
        queue.submit(one.item)
    with no_waits(), waits_allowed():
        assert one.item() == 1
    assert one.item() == 1
