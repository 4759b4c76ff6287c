"""Text comes apart into documents, becomes ids and comes back; batches are functions of their seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from reference.tiny import tokenizer as tiny_tokenizer
from reference.tiny.corpus import Document, bible_chapters, jargon_entries
from reference.tiny.data import TokenStream, encode_corpus, load_streams, save_streams

pytestmark = pytest.mark.ci

TOKENIZER = Path(tiny_tokenizer.__file__).with_name("tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


def test_chapters_carry_their_names_and_verse_numbers() -> None:
    chapters = list(bible_chapters("Ge1:1 In the beginning\nGe1:2 And the earth\n1Jn2:1 My little children\n"))
    assert [(c.name, c.text) for c in chapters] == [
        ("Genesis 1", "Genesis 1\n\n1 In the beginning\n2 And the earth"),
        ("1 John 2", "1 John 2\n\n1 My little children"),
    ]


def test_jargon_entries_lose_their_layout_and_become_answers() -> None:
    foo, bar = "   :foo: /foo/\n\n   1. A word\n   for tests.\n\n   2. Another.\n\n", "   :bar: n.\n\n   See {foo}.\n"
    text = "Contents\n\nGlossary\n\n" + foo + bar
    entries = list(jargon_entries(text))
    assert entries[0].text == "foo: /foo/\n\n1. A word for tests.\n\n2. Another."
    assert (entries[3].question, entries[3].text) == ("What is bar?", "See {foo}.")


def test_an_entry_and_its_question_fall_on_the_same_side_of_the_split() -> None:
    assert all(Document("j", f"{i}", "").held_out == Document("j", f"{i}?", "").held_out for i in range(500))


def test_special_tokens_have_the_first_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == tiny_tokenizer.VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in tiny_tokenizer.SPECIAL_TOKENS] == list(range(10))
    assert tokenizer.encode("<｜User｜>hi<｜Assistant｜></think>").ids[0] == 4


@given(text=st.text())
def test_every_text_survives_the_tokenizer(text: str) -> None:
    bundled = Tokenizer.from_file(str(TOKENIZER))
    assert bundled.decode(bundled.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("size", [16, 100, 266, 300, 5000])
def test_a_random_tokenizer_has_exactly_the_ids_asked_for(size: int) -> None:
    made = tiny_tokenizer.random_tokenizer(size)
    assert made.get_vocab_size() == size
    assert sorted(made.get_vocab().values()) == list(range(size))


def test_a_vocabulary_without_room_for_special_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 9"):
        tiny_tokenizer.random_tokenizer(9)


def test_streams_hold_whole_documents_and_survive_their_file(tmp_path: Path) -> None:
    documents = [
        {"source": "s", "name": "a", "text": "one two", "question": None, "held_out": False},
        {"source": "s", "name": "b", "text": "line\u2028separator", "question": "What is b?", "held_out": True},
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(d, ensure_ascii=False) + "\n" for d in documents), encoding="utf-8")
    save_streams(tmp_path / "tokens.npz", encode_corpus(corpus, TOKENIZER))
    streams = load_streams(tmp_path / "tokens.npz")
    assert streams["train"].ids[0] == 0 and streams["train"].ids[-1] == 1
    assert streams["held_out"].ids[:2].tolist() == [0, 4]


def test_windows_are_a_function_of_the_seed(rng: np.random.Generator, seed: int) -> None:
    stream = TokenStream(rng.integers(0, 2048, 1000).astype(np.uint16), np.array([0, 400, 990]))
    first, second = (stream.windows(np.random.default_rng(seed), 8, 50) for _ in range(2))
    assert first.shape == (8, 50) and np.array_equal(first, second)


def test_consecutive_windows_cover_every_prediction_once() -> None:
    windows = TokenStream(np.arange(100, dtype=np.uint16), np.array([0])).consecutive(12)
    assert windows[:, 1:].flatten().tolist() == list(range(1, 100))
