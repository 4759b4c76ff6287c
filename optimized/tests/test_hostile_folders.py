"""Folders that hold no usable model: `LLM` raises a typed error that names the file, the command says it in one line.

It knows the files of the bundled checkpoint; the tensors themselves are tested with the reader.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimized import LLM, SamplingParams
from optimized.cli import main
from optimized.model_source import bundled_folder
from reference.spec.errors import CheckpointError

pytestmark = pytest.mark.ci

INSTEAD: dict[str, Callable[[Path], object]] = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "device without end": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("gone"),
    "no UTF-8": lambda path: path.write_bytes(b'{"\xff": 1}'),
    "deep": lambda path: path.write_text("[" * 100_000),
    "long number": lambda path: path.write_text('{"a": ' + "9" * 10_000 + "}"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled checkpoint as a folder of links, to be changed."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(bundled_folder() / name)
    return tmp_path


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_the_command_names_the_file_in_one_line(
    name: str, kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).unlink(missing_ok=True)
    INSTEAD[kind](folder / name)
    assert main(["generate", "--model", str(folder), "--prompt", "a"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert name in errors[0]


def change_tokenizer(folder: Path, **parts: Any) -> None:
    """Replace parts of tokenizer.json."""
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8")) | parts
    path.unlink()
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize("stride", [0, 5])
def test_a_tokenizer_that_truncates_or_pads_cuts_no_prompt(stride: int, folder: Path) -> None:
    prompt, params = "hello there my friend", SamplingParams(max_tokens=1, temperature=0)
    want = LLM("tiny").generate(prompt, params, use_tqdm=False)
    change_tokenizer(
        folder,
        truncation={"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": stride},
        padding={
            "strategy": {"Fixed": 50},
            "direction": "Left",
            "pad_to_multiple_of": None,
            "pad_id": 99999,
            "pad_type_id": 0,
            "pad_token": "x",
        },
    )
    got = LLM(folder).generate(prompt, params, use_tqdm=False)
    assert got[0].prompt_token_ids == want[0].prompt_token_ids
    assert got[0].outputs[0].token_ids == want[0].outputs[0].token_ids


def test_a_tokenizer_whose_library_panics_is_refused_when_it_is_loaded(folder: Path) -> None:
    pieces = [{"SpecialToken": {"id": "X", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": {}}
    change_tokenizer(folder, post_processor=template)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokenizer"):
        LLM(folder)
