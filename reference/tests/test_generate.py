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
from reference.spec.errors import RequestError, UnsupportedError
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


def test_penalties_count_the_output_as_it_grows() -> None:
    class Two(Counter):
        def forward(self, tokens: torch.Tensor, replay_start: int = 0) -> torch.Tensor:
            return torch.tensor([[0.0, -9.0, 0.0, 3.0, 2.5, 2.0] + [-9.0] * 6] * len(tokens), dtype=torch.float64)

    def made(**options: Any) -> list[int]:
        return (
            generate(Two(), None, [3], SamplingParams(temperature=0, max_tokens=5, **options), 0).outputs[0].token_ids
        )

    assert made() == [3, 3, 3, 3, 3]
    assert made(presence_penalty=0.75) == [3, 4, 3, 3, 3]
    assert made(frequency_penalty=0.75) == [3, 4, 3, 5, 4]
    assert made(repetition_penalty=2.0) == [4, 5, 3, 3, 3]  # the prompt counts: 1.5, then 1.25, then 1.0
    assert made(logit_bias={0: 4.0}) == [0] * 5


def test_prompt_logprobs_tell_every_token_but_the_first() -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    entries = generate(Counter(), None, [2, 3, 5], params, 0).prompt_logprobs
    assert entries is not None and entries[0] is None
    assert [list(entry or ()) for entry in entries[1:]] == [[3], [5, 4]]
    total = math.exp(9) + math.exp(5) + VOCAB - 2
    third = entries[2] or {}
    assert (third[5].rank, third[4].rank) == (3, 1)
    assert third[5].logprob == pytest.approx(-math.log(total), abs=1e-6)
    assert generate(Counter(), None, [2, 3, 5], SamplingParams(max_tokens=1), 0).prompt_logprobs is None


def test_a_request_for_prompt_logprobs_is_not_replayed_from_later() -> None:
    class Replayed(Counter):
        def forward(self, tokens: torch.Tensor, replay_start: int = 0) -> torch.Tensor:
            return super().forward(tokens) + torch.eye(VOCAB, dtype=torch.float64)[7] * replay_start

    params = SamplingParams(temperature=0, max_tokens=1)
    assert generate(Replayed(), None, [2, 3], params, 0, replay_start=20).outputs[0].token_ids == [7]
    told = generate(Replayed(), None, [2, 3], SamplingParams(temperature=0, prompt_logprobs=0), 0, replay_start=20)
    assert told.outputs[0].token_ids[0] == 4


def test_processed_logprobs_are_asked_for_by_name() -> None:
    params = SamplingParams(top_k=1, max_tokens=2, logprobs=3)
    raw, processed = (
        generate(Counter(), None, [2], params, 0, logprobs_mode=mode).outputs[0]
        for mode in ("raw_logprobs", "processed_logprobs")
    )
    assert raw.token_ids == processed.token_ids == [3, 4]
    assert [list(entry) for entry in raw.logprobs or ()] == [[3, EOS, 0], [4, EOS, 0]]
    assert [list(entry) for entry in processed.logprobs or ()] == [[3], [4]]
    assert processed.cumulative_logprob == 0.0 and (raw.cumulative_logprob or 0.0) < 0.0


def test_padding_of_the_vocabulary_is_never_drawn_nor_taken() -> None:
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=12)
    done = generate(Counter(), None, [8], params, 0, vocab_size=10).outputs[0]
    assert done.token_ids == [9, EOS]
    assert all(max(entry) < 10 for entry in done.logprobs or ())
    with pytest.raises(RequestError, match="prompt id 10"):
        generate(Counter(), None, [10], params, 0, vocab_size=10)


def test_options_outside_the_vocabulary_or_not_served_are_refused() -> None:
    with pytest.raises(RequestError, match=r"logit_bias names token 12; ids are 0\.\.11"):
        generate(Counter(), None, [2], SamplingParams(logit_bias={VOCAB: 1.0}), 0)
    with pytest.raises(UnsupportedError, match="so_args"):
        generate(Counter(), None, [2], SamplingParams(so_args={"schema_type": "regex", "schema": "a"}), 0)


def test_a_dead_end_of_a_grammar_is_an_error() -> None:
    with pytest.raises(RequestError, match="masked"):
        generate(Counter(), None, [2], SamplingParams(), 0, grammar=lambda output: torch.zeros(VOCAB, dtype=torch.bool))
