"""Strict JSON: duplicate keys, NaN and trailing bytes are refused. It knows nothing about what the document means."""

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"key {key!r} appears twice in one object")
        seen[key] = value
    return seen


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse UTF-8 JSON whose top level is an object.

    Raises:
        ValueError: not UTF-8, not JSON, a duplicate key, NaN or Infinity, too deep, or not an object.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"the top level is {type(value).__name__}, not an object")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Read a file with `parse_object`.

    Raises:
        OSError: the file cannot be read.
        ValueError: as `parse_object`, or the file is over 256 MiB.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{size} bytes is more than the {MAX_BYTES} bytes that are read as JSON")
    return parse_object(path.read_bytes())
