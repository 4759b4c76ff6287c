"""Names that are no plain files, and files that change under the reader, are refused by name and never waited for.

It knows the file names of a checkpoint folder; what is inside a file is tested elsewhere.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reference.checkpoint import load_checkpoint
from reference.spec import CheckpointError, ConfigError
from reference.spec.checkpoint_files import CheckpointFiles
from reference.spec.config import ModelConfig
from reference.spec.safetensors_file import SafetensorsFile
from reference.tests.small_checkpoint import write_small_checkpoint

pytestmark = pytest.mark.ci

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMES = ("config.json", SINGLE, "tokenizer.json")
INSTEAD: dict[str, Callable[[Path], None]] = {
    "folder": os.mkdir,
    "pipe": os.mkfifo,
    "device without end": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to nothing": lambda path: path.symlink_to("gone"),
}


def put(path: Path, kind: str) -> None:
    """Replace a file by something that is none."""
    path.unlink(missing_ok=True)
    INSTEAD[kind](path)


@pytest.mark.parametrize("kind", INSTEAD)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    put(write_small_checkpoint(tmp_path) / name, kind)
    begin = time.monotonic()
    with pytest.raises((CheckpointError, ConfigError), match=name):
        load_checkpoint(tmp_path)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("kind", INSTEAD)
def test_what_is_no_index_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    (write_small_checkpoint(tmp_path) / SINGLE).unlink()
    put(tmp_path / INDEX, kind)
    with pytest.raises(CheckpointError, match=INDEX):
        load_checkpoint(tmp_path)


def test_an_index_with_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    single = write_small_checkpoint(tmp_path) / SINGLE
    names = SafetensorsFile.open(single).entries
    single.unlink()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "s" * 300 + ".safetensors")}))
    with pytest.raises(CheckpointError, match="absent"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a\0b"], ids=["long", "very long", "zero byte"])
def test_a_folder_that_no_file_system_takes_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        load_checkpoint(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        ModelConfig.from_file(tmp_path / name)


def grow(path: Path) -> None:
    """Append a byte."""
    with path.open("ab") as file:
        file.write(b"x")


def shrink(path: Path) -> None:
    """Cut the last half off."""
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    """Write other bytes in place, the size stays."""
    with path.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(bytes(8))
    os.utime(path, ns=(0, 0))


def replace(path: Path) -> None:
    """Put another file with the same bytes in its place."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("mapped", [False, True], ids=["before the first read", "between reads"])
@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace, Path.unlink], ids=lambda change: change.__name__)
def test_a_file_that_changes_while_it_is_loaded_is_refused(
    change: Callable[[Path], None], mapped: bool, tmp_path: Path
) -> None:
    path = write_small_checkpoint(tmp_path) / SINGLE
    files = CheckpointFiles.open(tmp_path, ModelConfig.from_file(tmp_path))
    first, *_, last = files.names()
    if mapped:
        files.read(first)
    files.check_unchanged()
    change(path)
    with pytest.raises(CheckpointError, match=SINGLE):
        files.read(last)
    with pytest.raises(CheckpointError, match=SINGLE):
        files.check_unchanged()
