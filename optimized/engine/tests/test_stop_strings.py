"""Stop strings: watching token by token finds what looking at the whole text after each token would find."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.engine.stop_strings import StopMatch, StopWatcher
from optimized.tests.stub import byte_level_tokenizer

pytestmark = pytest.mark.ci


def byte_fallback_tokenizer() -> Any:
    """ids: EOS, the 256 byte tokens, then pieces of ordinary text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    pieces = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "ab", " a", "ba b", "é", "€"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


TOKENIZERS = {"byte_level": byte_level_tokenizer(), "byte_fallback": byte_fallback_tokenizer()}


def first_match(decode: Any, tokens: list[int], stops: list[str], min_tokens: int) -> tuple[int, StopMatch] | None:
    """(tokens used, match) by the law: decode everything after each token; unfinished characters are no text."""
    settled = len(decode(tokens[:min_tokens]).rstrip("\ufffd"))
    for used in range(min_tokens + 1, len(tokens) + 1):
        text = decode(tokens[:used]).rstrip("\ufffd")
        found = [(text.find(stop, max(0, settled - len(stop) + 1)), i) for i, stop in enumerate(stops)]
        found = sorted(one for one in found if one[0] >= 0)
        if found:
            return used, StopMatch(found[0][0], stops[found[0][1]])
    return None


def watched_match(decode: Any, tokens: list[int], stops: list[str], min_tokens: int) -> tuple[int, StopMatch] | None:
    watcher = StopWatcher(decode, stops, min_tokens)
    for used, token in enumerate(tokens, start=1):
        match = watcher.push(token)
        if match is not None:
            return used, match
    return None


TEXT = st.text(alphabet="ab é€😀", min_size=0, max_size=12)
STOPS = st.lists(st.text(alphabet="ab é€😀", min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXT, stops=STOPS, min_tokens=st.integers(0, 6))
def test_text_in_whole_tokens(kind: str, text: str, stops: list[str], min_tokens: int) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = tokenizer.encode(text).ids
    assert watched_match(tokenizer.decode, tokens, stops, min_tokens) == first_match(
        tokenizer.decode, tokens, stops, min_tokens
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(text=TEXT, stops=STOPS, min_tokens=st.integers(0, 6), data=st.data())
def test_text_in_single_bytes_with_other_tokens_between(
    kind: str, text: str, stops: list[str], min_tokens: int, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = [one for byte in text.encode() for one in byte_tokens(kind, byte)]
    for token in data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=4)):
        tokens.insert(data.draw(st.integers(0, len(tokens))), token)
    assert watched_match(tokenizer.decode, tokens, stops, min_tokens) == first_match(
        tokenizer.decode, tokens, stops, min_tokens
    )


@pytest.mark.parametrize(("text", "min_tokens"), [("aé", 2), ("😀😀", 5)])
def test_a_character_that_a_byte_run_took_back_may_match_after_min_tokens(text: str, min_tokens: int) -> None:
    tokens = [token for byte in text.encode() for token in byte_tokens("byte_fallback", byte)]
    decode = TOKENIZERS["byte_fallback"].decode
    assert set(decode(tokens[:min_tokens])) == {"\ufffd"}
    expected = (len(tokens), StopMatch(0, text[0]))
    assert watched_match(decode, tokens, [text[0]], min_tokens) == expected
    assert first_match(decode, tokens, [text[0]], min_tokens) == expected


def byte_tokens(kind: str, byte: int) -> list[int]:
    """The token of one byte."""
    if kind == "byte_fallback":
        return [1 + byte]
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [other for other in range(256) if other not in shown]
    letter = chr(byte) if byte in shown else chr(256 + hidden.index(byte))
    return [TOKENIZERS[kind].token_to_id(letter)]


def test_of_matches_in_one_token_the_leftmost_counts() -> None:
    texts = ["x", "abcd"]
    watcher = StopWatcher(lambda tokens: "".join(texts[t] for t in tokens), ["bc", "abcd", "ab"])
    assert watcher.push(0) is None
    assert watcher.push(1) == StopMatch(1, "abcd")


def test_the_cost_of_a_token_does_not_grow() -> None:
    longest = 0

    def decode(tokens: Any) -> str:
        nonlocal longest
        longest = max(longest, len(tokens))
        return "".join("\ufffd" if token else "a" for token in tokens)

    watcher = StopWatcher(decode, ["zz"])
    for i in range(2000):
        watcher.push(int(i % 1000 > 400))
    assert longest <= 66
