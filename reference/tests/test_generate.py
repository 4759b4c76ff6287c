"""Laws of one-sequence generation, on a toy model: what ends a completion, and what its ids and its text hold."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reference import sampler
from reference.completion import first_stop
from reference.generate import generate
from reference.sampler import Role
from reference.spec.errors import RequestError
from reference.spec.outputs import CompletionOutput
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci

VOCAB = 12
EOS = 1


class Counter:
    """A model whose best next token is the last one plus one; the second best is EOS."""

    config: Any = SimpleNamespace(vocab_size=VOCAB, eos_token_id=EOS, max_position_embeddings=16)

    def forward(self, tokens: torch.Tensor, replay_start: int = 0) -> torch.Tensor:
        logits = torch.zeros(len(tokens), VOCAB, dtype=torch.float64)
        logits[:, EOS] = 5
        logits[torch.arange(len(tokens)), (tokens + 1) % VOCAB] = 9
        return logits


class Letters:
    """Token t is the letter at place t; 0 and EOS are special and have no text."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join("__cdefghijkl"[t] for t in ids if t > EOS)


def greedy(prompt: list[int], **options: Any) -> CompletionOutput:
    return generate(Counter(), Letters(), prompt, SamplingParams(temperature=0, **options), 0).outputs[0]


def test_length_ends_at_max_tokens() -> None:
    done = greedy([2], max_tokens=3)
    assert (done.token_ids, done.text, done.finish_reason, done.stop_reason) == ([3, 4, 5], "def", "length", None)


def test_no_max_tokens_ends_at_the_context() -> None:
    done = greedy([2] * 14, max_tokens=None)
    assert (done.token_ids, done.finish_reason) == ([3, 4], "length")


def test_eos_ends_and_has_no_text() -> None:
    done = greedy([10])  # 11, 0, EOS
    assert (done.token_ids, done.text, done.finish_reason, done.stop_reason) == ([11, 0, EOS], "l", "stop", None)


def test_eos_counts_as_eos_when_it_is_a_stop_id_too() -> None:
    assert greedy([11], stop_token_ids=[EOS]).stop_reason is None
    assert greedy([11], stop_token_ids=[EOS], ignore_eos=True).stop_reason == EOS


def test_ignored_eos_goes_on() -> None:
    assert greedy([11], ignore_eos=True, max_tokens=4).token_ids == [0, EOS, 2, 3]


def test_stop_id_stays_in_the_ids_and_not_in_the_text() -> None:
    done = greedy([2], stop_token_ids=[7, 5])
    assert (done.token_ids, done.text, done.finish_reason, done.stop_reason) == ([3, 4, 5], "de", "stop", 5)


def test_stop_string_across_tokens_is_cut_from_the_text() -> None:
    done = greedy([2], stop=["efg"])
    assert (done.token_ids, done.text, done.finish_reason, done.stop_reason) == ([3, 4, 5, 6], "d", "stop", "efg")


def test_stop_string_wins_over_length_and_stop_id_over_length() -> None:
    assert greedy([2], max_tokens=2, stop="e").stop_reason == "e"
    assert greedy([2], max_tokens=2, stop_token_ids=[4]).finish_reason == "stop"


def test_min_tokens_masks_stop_ids_and_eos() -> None:
    assert greedy([11], max_tokens=3).token_ids == [0, EOS]
    assert greedy([11], max_tokens=3, min_tokens=3).token_ids == [0, 0, 0]  # EOS masked: the lowest id of the rest
    assert greedy([2], max_tokens=3, min_tokens=1, stop_token_ids=[3]).token_ids[0] == 0
    assert greedy([2], max_tokens=3, min_tokens=1, stop_token_ids=[4]).token_ids == [3, 4]


def test_min_tokens_hides_stop_strings_that_end_within_them() -> None:
    assert greedy([2], stop=["e"], min_tokens=2, max_tokens=4).finish_reason == "length"
    assert greedy([2], stop=["ef"], min_tokens=2, max_tokens=4).text == "d"


@pytest.mark.parametrize(
    ("text", "stops", "settled", "found"),
    [
        ("abcabc", ["c", "b"], 0, (1, "b")),
        ("abcabc", ["bc", "b"], 0, (1, "bc")),
        ("abcabc", ["b"], 2, (4, "b")),
        ("abcabc", ["bc"], 2, (1, "bc")),
        ("abc", ["abcd"], 0, None),
        ("abc", [], 0, None),
    ],
)
def test_first_stop(text: str, stops: list[str], settled: int, found: tuple[int, str] | None) -> None:
    assert first_stop(text, stops, settled) == found


def test_logprobs_hold_the_sampled_token_and_the_best_ones() -> None:
    done = greedy([2], max_tokens=2, logprobs=2, stop_token_ids=[3], min_tokens=1)
    assert done.logprobs is not None
    first = done.logprobs[0]
    total = math.exp(9) + math.exp(5) + VOCAB - 2
    assert list(first) == [0, 3, EOS]  # 3 and EOS are masked at first, so 0 is drawn; logprobs are raw
    assert [first[t].rank for t in first] == [3, 1, 2]
    assert first[3].logprob == pytest.approx(9 - math.log(total), abs=1e-6)
    assert done.cumulative_logprob == sum(
        step[t].logprob for step, t in zip(done.logprobs, done.token_ids, strict=True)
    )


def test_logprobs_zero_reports_the_sampled_token_alone() -> None:
    done = greedy([2], max_tokens=2, logprobs=0)
    assert [list(step) for step in done.logprobs or []] == [[3], [4]]


def test_samples_differ_by_index_and_repeat_by_seed() -> None:
    params = SamplingParams(temperature=30, n=3, max_tokens=8, ignore_eos=True, seq_seed=5)
    first, second = (generate(Counter(), None, [2], params, request_seed=s) for s in (1, 2))
    ids = [output.token_ids for output in first.outputs]
    assert ids == [output.token_ids for output in second.outputs]
    assert len({tuple(sample) for sample in ids}) == 3
    assert [output.index for output in first.outputs] == [0, 1, 2]


def test_noise_is_keyed_by_the_absolute_position() -> None:
    params = SamplingParams(temperature=30, max_tokens=1)
    logits = Counter().forward(torch.tensor([4, 2]))[-1]
    expected = sampler.draw(logits, params, seed=77, position=2, sample_index=0, role=Role.TARGET).token
    assert generate(Counter(), None, [4, 2], params, request_seed=77).outputs[0].token_ids == [expected]


@pytest.mark.parametrize("prompt", [[], [-1], [VOCAB], [2**63], [True], [1.5], [2] * 16], ids=str)
def test_a_bad_prompt_is_refused(prompt: list[Any]) -> None:
    with pytest.raises(RequestError, match="request 0"):
        generate(Counter(), None, prompt, SamplingParams(), 0)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="tokenizer"):
        generate(Counter(), None, [2], SamplingParams(stop=("x",)), 0)
