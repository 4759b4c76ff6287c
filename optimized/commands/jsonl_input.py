"""One line of a jsonl input: a request, or the reason why it is none.

Knows bytes, JSON and the names a line may hold; knows nothing about the engine or about output files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from optimized.engine.structured.language import check_available
from reference.spec import json_file
from reference.spec.errors import RequestError, UnsupportedError, nearest, shown
from reference.spec.sampling import SamplingParams

#: What may be wrong with a line; "request" is for what only the engine can tell (an id outside the vocabulary, …).
ERROR_KINDS = ("too_long", "not_utf8", "not_json", "not_object", "unknown_key", "bad_value", "not_supported", "request")

_PARAMETERS = tuple(field.name for field in dataclasses.fields(SamplingParams))
KEYS = ("custom_id", "prompt", "prompt_token_ids", *_PARAMETERS)
_BLOCK = 2**20


@dataclass(frozen=True)
class LineRequest:
    """A good line. prompt: in the shape that LLM.generate takes."""

    custom_id: str | int | None
    prompt: Any
    params: SamplingParams


@dataclass(frozen=True)
class LineError:
    """A bad line. kind: one of ERROR_KINDS."""

    custom_id: str | int | None
    kind: str
    message: str


class _BadLineError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_lines(stream: BinaryIO, limit: int) -> Iterator[bytes | None]:
    """The lines of a stream without their ends; None for one longer than `limit` bytes, whose rest is skipped."""
    while line := stream.readline(limit + 1):
        if line.endswith(b"\n"):
            yield line[:-1]
        elif len(line) <= limit:
            yield line
        else:
            while rest := stream.readline(_BLOCK):
                if rest.endswith(b"\n"):
                    break
            yield None


def parse_line(line: bytes | None, defaults: dict[str, Any], limit: int) -> LineRequest | LineError:
    """A line as a request.

    Args:
        line: as read_lines gives it.
        defaults: sampling parameters for what the line does not say.
        limit: the longest line, for the message.
    """
    custom_id: str | int | None = None
    try:
        record = _decode(line, limit)
        custom_id = _custom_id(record)
        for key in record:
            if key not in KEYS:
                raise _BadLineError("unknown_key", f"unknown key {key!r}{nearest(key, list(KEYS))}")
        return LineRequest(custom_id, _prompt(record), _params({**defaults, **record}))
    except _BadLineError as error:
        return LineError(custom_id, error.kind, str(error))


def _decode(line: bytes | None, limit: int) -> dict[str, Any]:
    if line is None:
        raise _BadLineError("too_long", f"the line is longer than {limit} bytes")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _BadLineError("not_utf8", f"byte {error.start} is no UTF-8: {error.reason}") from error
    try:
        record = json_file.parse(text)
    except ValueError as error:
        raise _BadLineError("not_json", f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise _BadLineError("not_object", f"a JSON {type(record).__name__}; accepted: an object")
    return record


def _custom_id(record: dict[str, Any]) -> str | int | None:
    value = record.get("custom_id")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and value.isprintable():
        return value
    raise _BadLineError("bad_value", f"custom_id: got {shown(value, 80)}; accepted: printable text, or an integer")


def _prompt(record: dict[str, Any]) -> Any:
    given = [key for key in ("prompt", "prompt_token_ids") if key in record]
    if len(given) != 1:
        raise _BadLineError(
            "bad_value", f"got {' and '.join(given) or 'no prompt'}; accepted: prompt or prompt_token_ids"
        )
    if given == ["prompt_token_ids"]:
        return {"prompt_token_ids": record["prompt_token_ids"]}
    if not isinstance(record["prompt"], str):
        raise _BadLineError("bad_value", f"prompt: got {shown(record['prompt'], 80)}; accepted: text")
    return record["prompt"]


def _params(values: dict[str, Any]) -> SamplingParams:
    try:
        params = SamplingParams(**{name: values[name] for name in _PARAMETERS if name in values})
        check_available(params)
    except UnsupportedError as error:
        raise _BadLineError("not_supported", str(error)) from error
    except RequestError as error:
        raise _BadLineError("bad_value", str(error)) from error
    return params
