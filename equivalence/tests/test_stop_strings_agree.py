"""Stop strings end a text at one token and place in both voices, also where characters are split over tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from optimized.engine.stop_strings import StopMatch, StopWatcher
from reference.completion import Completion
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci

BYTES = [*b"ab", *"é€".encode(), 0xFF]
STOPS = ["a", "b", "é", "€", "\ufffd", "\ufffd\ufffd", "a\ufffd", "\ufffdb", "é€", "ab"]
NO_EOS = 1000


class ByteTokenizer:
    """A token is a byte."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode(errors="replace")


def test_texts_of_split_and_broken_characters(seed: int) -> None:
    rng, ended = random.Random(seed), 0
    for _ in range(3000):
        tokens = rng.choices(BYTES, k=rng.randint(1, 12))
        stops, least = rng.sample(STOPS, rng.randint(1, 3)), min(len(tokens), rng.choice((0, 0, 2)))
        params = SamplingParams(stop=stops, min_tokens=least, max_tokens=len(tokens), ignore_eos=True, temperature=0)
        completion = Completion(ByteTokenizer(), params, NO_EOS, 0, len(tokens))
        watcher = StopWatcher(ByteTokenizer().decode, stops, least)
        for token in tokens:
            completion.append(token, torch.empty(0))  # no logprobs are asked for
            match = watcher.push(token)
            done = completion.output
            want = StopMatch(len(done.text), str(done.stop_reason)) if done.finish_reason == "stop" else None
            assert match == want, (tokens, stops, least)
            if match is not None:
                ended += 1
                break
    assert 300 < ended < 2900
