"""Prompts go out and come back as training text, each beside its own answer."""

from __future__ import annotations

import numpy as np
import pytest

from reference.tiny import regenerate
from reference.tiny.data import TokenStream

pytestmark = pytest.mark.ci


def stream() -> TokenStream:
    return TokenStream(np.arange(1000, dtype=np.uint16), np.arange(0, 1000, 100))


def test_prompts_are_windows_of_the_stream_with_seeds_of_their_own():
    prompts = regenerate.make_prompts(stream(), count=8, prompt=20, length=50, seed=3)
    assert all(np.array_equal(np.diff(p["prompt_token_ids"]), np.ones(19)) for p in prompts)
    assert [p["seq_seed"] for p in prompts] == list(range(3, 11))
    assert {p["max_tokens"] for p in prompts} == {30}
    assert [p["temperature"] for p in prompts] == [0.0, 0.0, 0.7, 1.0] * 2
    assert prompts == regenerate.make_prompts(stream(), count=8, prompt=20, length=50, seed=3)


def test_every_sequence_is_a_prompt_and_its_answer():
    prompts = [{"prompt_token_ids": [i, i + 1]} for i in range(40)]
    answers = [{"outputs": [{"token_ids": [100 + i]}]} for i in range(40)]
    streams = regenerate.to_streams(regenerate.collect(prompts, answers))
    assert streams["train"].ids.tolist()[:6] == [0, 1, 100, 1, 2, 101]
    assert streams["train"].starts.tolist()[:3] == [0, 3, 6]
    assert streams["held_out"].ids.tolist() == [38, 39, 138, 39, 40, 139]


@pytest.mark.parametrize(
    ("answers", "reason"),
    [([], "1 prompts but 0 answers"), ([{"outputs": []}], "record 0 of the answers holds no output")],
)
def test_answers_that_do_not_fit_are_refused(answers, reason):
    with pytest.raises(ValueError, match=reason):
        regenerate.collect([{"prompt_token_ids": [1]}], answers)
