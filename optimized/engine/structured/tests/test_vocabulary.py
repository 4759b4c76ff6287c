"""A token's bytes are what the tokenizer's own decoder makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import reference.spec
from optimized.engine.structured.vocabulary import token_bytes
from optimized.tests.stub import byte_level_tokenizer
from reference.spec.errors import UnsupportedError

pytestmark = pytest.mark.ci

BUNDLED = Path(reference.spec.__file__).parents[1] / "tiny" / "tokenizer.json"


TOKENIZERS = {"level": byte_level_tokenizer(), "fallback": Tokenizer.from_file(str(BUNDLED))}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_bytes_are_those_of_the_decoded_token(tokenizer: Tokenizer) -> None:
    found = token_bytes(tokenizer.to_str())
    assert len(found) == tokenizer.get_vocab_size()
    assert [one.decode("utf-8", "replace") for one in found] == [tokenizer.decode([i]) for i in range(len(found))]
    assert {bytes([byte]) for byte in range(256)} <= set(found)


def test_special_tokens_have_no_bytes() -> None:
    found = token_bytes(byte_level_tokenizer().to_str())
    assert (found[0], found[1]) == (b"", b"")


def test_a_decoder_that_changes_the_text_is_refused_by_name() -> None:
    described = json.loads(byte_level_tokenizer().to_str())
    described["decoder"] = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    with pytest.raises(UnsupportedError, match="decoder Strip"):
        token_bytes(json.dumps(described))
