"""The bundled checkpoint under every way to run a request: the tokens and the bits of their logprobs are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optimized import LLM, SamplingParams

ci = pytest.mark.ci

OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 96, "page_size": 16, "max_model_len": 256}
CROWDED: dict[str, Any] = {"page_size": 4, "num_pages": 40, "max_num_batched_tokens": 23, "max_num_seqs": 8}
KEEP = 70  # the least for a window of 64 and drafts of 5


def requests(rng: np.random.Generator, vocab: int) -> tuple[list[Any], list[SamplingParams]]:
    """Prompts on both sides of the window and of what replay keeps; greedy and sampled, penalised, two samples."""
    prompts = [rng.integers(3, vocab, size=size).tolist() for size in (120, 5, 69, 71, 40)]
    return prompts, [
        SamplingParams(
            temperature=i % 2,
            n=1 + i % 2,
            seq_seed=i,
            max_tokens=10,
            logprobs=2,
            frequency_penalty=i / 9,
            ignore_eos=True,
        )
        for i in range(len(prompts))
    ]


def run(prompts: list[Any], params: list[SamplingParams], **options: Any) -> tuple[list[Any], LLM]:
    llm = LLM("tiny", **{**OPTIONS, **options})
    outputs = llm.generate(prompts, params, use_tqdm=False)
    llm._engine.check_idle()
    return [one.outputs for one in outputs], llm


@pytest.fixture(scope="module")
def work() -> tuple[list[Any], list[SamplingParams]]:
    return requests(np.random.default_rng(17), LLM("tiny", **OPTIONS)._engine.limits.vocab_size)


@pytest.fixture(scope="module")
def undisturbed(work: tuple[list[Any], list[SamplingParams]]) -> dict[str, list[Any]]:
    """Each request alone, without lag."""
    found: dict[str, list[Any]] = {}
    for mode in ("off", "mask"):
        llm = LLM("tiny", **{**OPTIONS, "async_scheduling": False, "yoco_mode": mode, "yoco_keep_tokens": KEEP})
        found[mode] = [llm.generate([p], one, use_tqdm=False)[0].outputs for p, one in zip(*work, strict=True)]
    return found


@pytest.mark.parametrize(
    ("mode", "lag"),
    [
        pytest.param("off", True, marks=ci),
        ("off", False),
        ("mask", True),
        ("mask", False),
        pytest.param("compact", True, marks=ci),
        ("compact", False),
    ],
)
def test_preemption_lag_and_poison_change_no_bit(
    work: tuple[list[Any], list[SamplingParams]], undisturbed: dict[str, list[Any]], mode: str, lag: bool
) -> None:
    found, llm = run(*work, async_scheduling=lag, poison_unused=True, yoco_mode=mode, yoco_keep_tokens=KEEP, **CROWDED)
    assert llm._engine._scheduler.num_preemptions > 0
    assert found == undisturbed["off" if mode == "off" else "mask"]


@ci
def test_replay_is_another_function_only_where_it_drops_what_is_read(
    work: tuple[list[Any], list[SamplingParams]], undisturbed: dict[str, list[Any]]
) -> None:
    differ = [one != other for one, other in zip(undisturbed["off"], undisturbed["mask"], strict=True)]
    assert differ[0]
    assert not differ[1]
    assert not differ[2]
    assert run(*work, yoco_mode="compact", yoco_keep_tokens=120)[0] == undisturbed["off"]


@ci
def test_prompt_logprobs_read_every_row(work: tuple[list[Any], list[SamplingParams]]) -> None:
    prompts, _ = work
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=0, prompt_logprobs=0, ignore_eos=True)
    exact = LLM("tiny", **OPTIONS).generate(prompts[:2], params, use_tqdm=False)
    compact = LLM("tiny", **{**OPTIONS, "yoco_mode": "compact", "yoco_keep_tokens": KEEP})
    for found, expected in zip(compact.generate(prompts[:2], params, use_tqdm=False), exact, strict=True):
        assert found.prompt_logprobs == expected.prompt_logprobs
        assert found.outputs == expected.outputs


@pytest.mark.parametrize(
    ("nextn", "mode", "options"),
    [
        pytest.param(5, "compact", {"async_scheduling": True}, marks=ci),
        pytest.param(3, "off", {"async_scheduling": True, "verification_lengths": "scheduled"}, marks=ci),
        (5, "off", {"async_scheduling": False}),
        (1, "mask", {"async_scheduling": True}),
        (3, "compact", {"async_scheduling": False, "verification_lengths": "scheduled"}),
        (5, "mask", {"async_scheduling": False, "verification_lengths": "scheduled", "confidence_table": (0.5,)}),
        (2, "compact", {"async_scheduling": True, "max_num_seqs": 2}),
    ],
)
def test_drafts_change_no_bit(
    work: tuple[list[Any], list[SamplingParams]],
    undisturbed: dict[str, list[Any]],
    nextn: int,
    mode: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("optimized.engine.step_cost.REPEATS", 1)
    page = max(4, nextn + 1)
    crowd = {**CROWDED, "page_size": page, "num_pages": 156 // page, "max_num_batched_tokens": 48}
    replay = {"yoco_mode": mode, "yoco_keep_tokens": KEEP, "poison_unused": True}
    found, llm = run(*work, nextn=nextn, **{**crowd, **replay, **options})
    assert llm._engine._scheduler.num_preemptions > 0 or len(options) > 1  # budgets depend on what steps cost
    assert llm.statistics.acceptance.tau > 1
    assert found == undisturbed["off" if mode == "off" else "mask"]
