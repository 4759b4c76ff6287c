"""Strict JSON: duplicate keys, NaN and trailing bytes are refused. It knows nothing about what the document means."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from reference.spec.errors import shown

MAX_BYTES = 256 * 2**20


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"key {shown(key)} appears twice in one object")
        seen[key] = value
    return seen


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: not JSON, a duplicate key, NaN or Infinity, or too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse UTF-8 JSON whose top level is an object.

    Raises:
        ValueError: as `parse`, or not UTF-8, or not an object.
    """
    value = parse(text.decode("utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"the top level is {type(value).__name__}, not an object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with `parse_object`.

    Raises:
        OSError: the file cannot be read.
        ValueError: as `parse_object` or `read_bytes`.
    """
    return parse_object(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device is refused at once, not waited for.

    Raises:
        OSError: the file cannot be read.
        ValueError: not a regular file, or one of over 256 MiB.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file")
        if status.st_size > MAX_BYTES:
            raise ValueError(f"{status.st_size} bytes is more than the {MAX_BYTES} bytes that are read as JSON")
        return file.read(MAX_BYTES)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
