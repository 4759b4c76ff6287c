"""Which tokens read alike: the rules of the Engram token map, one token after the other."""

import json
from pathlib import Path

import pytest

from reference.spec import CheckpointError
from reference.spec.token_map import engram_token_map

pytestmark = pytest.mark.ci


def tokenizer_file(folder: Path, tokens: list[str], added: list[str] | None = None) -> Path:
    """A byte-level BPE tokenizer without merges. tokens are in its byte alphabet: U+0120 is a blank."""
    vocab = {token: index for index, token in enumerate(tokens)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": len(tokens) + index, "content": token, **flags} for index, token in enumerate(added or [])]
    document = {
        "version": "1.0",
        "added_tokens": special,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "tokens, expected",
    [
        (["a", "A", "b", "B"], [0, 0, 1, 1]),  # case
        (["e", "Ã©", "Ãī"], [0, 0, 0]),  # é and É in bytes: accents
        (["fi", "ï¬ģ"], [0, 0]),  # the ligature fi: NFKC
        (["a", "Ġa", "aĠ", "ĠĠa", "Ċa"], [0, 0, 0, 0, 0]),  # blanks at the ends
        (["aĠb", "aĠĠb", "aĊĉb", "ab"], [0, 0, 0, 1]),  # a run of blanks inside is one blank
        (["Ġ", "ĠĠ", "Ċ", "ĉč", "a"], [0, 0, 0, 0, 1]),  # a lone blank survives the strip
        (["Ã", "Å", "Ãĥ"], [0, 1, 2]),  # half a character keeps its raw string; Ãĥ is the letter A with a tilde
        (["Ìģ", "a"], [0, 1]),  # a lone combining accent normalises to nothing and keeps its text
    ],
)
def test_tokens_that_read_alike_share_an_id(tmp_path: Path, tokens: list[str], expected: list[int]) -> None:
    assert engram_token_map(tokenizer_file(tmp_path, tokens), 64).tolist() == expected


def test_special_tokens_are_ordinary_tokens_here(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path, ["a", "b"], added=["<BOS>", "<bos>", "A"])
    assert engram_token_map(path, 5).tolist() == [0, 1, 2, 2, 0]


def test_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path, ["a", "b"])
    with pytest.raises(CheckpointError, match="2 tokens, more than vocab_size = 1") as caught:
        engram_token_map(path, 1)
    assert str(path) in str(caught.value)


def test_tokenizer_with_a_hole_in_its_ids_is_refused(tmp_path: Path) -> None:
    path = tokenizer_file(tmp_path, ["a", "b"])
    path.write_text(path.read_text().replace('"b": 1', '"b": 7'))
    with pytest.raises(CheckpointError, match="token id 1 is not defined"):
        engram_token_map(path, 64)


def test_missing_tokenizer_is_refused_by_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.json: cannot be read as a tokenizer"):
        engram_token_map(tmp_path / "absent.json", 64)
