"""The jsonl output: one record a line, in order, and how an interrupted file is taken up again.

Knows records and the file they go to; knows nothing about where requests come from or how they are run.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any, NamedTuple

from optimized.commands.jsonl_input import LineError
from reference.spec.errors import RequestError
from reference.spec.outputs import CompletionOutput, Logprob, RequestOutput

RECORD_KEYS = ("index", "custom_id", "outputs", "prompt_logprobs", "seq_seed", "error")
#: JSON has no -inf: the least logprob that is written.
LEAST_LOGPROB = -9999.0


def output_record(index: int, custom_id: str | int | None, output: RequestOutput) -> dict[str, Any]:
    """The record of a request that reached the engine. "error" holds the first sample's error, if one has any."""
    # The engine counts requests, a file counts lines: a message must not depend on where a run was resumed.
    named = f"request {output.request_id}: "
    errors = [_at_line(index, one.error.removeprefix(named)) for one in output.outputs if one.error is not None]
    kept = [one for one in output.outputs if one.error is None or one.token_ids]
    return {
        "index": index,
        "custom_id": custom_id,
        "outputs": [_completion(one) for one in kept],
        "prompt_logprobs": output.prompt_logprobs and [one and _logprobs(one) for one in output.prompt_logprobs],
        "seq_seed": output.metrics.seq_seed if output.metrics is not None else None,
        "error": {"kind": "request", "message": errors[0]} if errors else None,
    }


def error_record(index: int, bad: LineError) -> dict[str, Any]:
    """The record of a bad line."""
    error = {"kind": bad.kind, "message": _at_line(index, bad.message)}
    nothing: dict[str, Any] = {"outputs": [], "prompt_logprobs": None, "seq_seed": None}
    return {"index": index, "custom_id": bad.custom_id, **nothing, "error": error}


def _at_line(index: int, message: str) -> str:
    return f"line {index + 1}: {message}"


def _completion(one: CompletionOutput) -> dict[str, Any]:
    return {
        "index": one.index,
        "text": one.text,
        "token_ids": one.token_ids,
        "finish_reason": one.finish_reason,
        "stop_reason": one.stop_reason,
        "cumulative_logprob": None if one.cumulative_logprob is None else max(one.cumulative_logprob, LEAST_LOGPROB),
        "logprobs": None if one.logprobs is None else [_logprobs(step) for step in one.logprobs],
    }


def _logprobs(step: dict[int, Logprob]) -> dict[str, dict[str, float | int]]:
    return {str(token): {"logprob": max(one.logprob, LEAST_LOGPROB), "rank": one.rank} for token, one in step.items()}


class RecordWriter:
    """Writes records, each one line, each flushed, so that an interruption loses at most the line being written."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.failed = 0

    def write(self, record: dict[str, Any]) -> None:
        """Writes one record and counts it if it holds an error."""
        self.failed += record["error"] is not None
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self._stream.write(line.encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()


class Finished(NamedTuple):
    """One record that an output file already holds, as far as resuming needs it. seeded: the request had a seed."""

    custom_id: str | int | None
    seeded: bool
    failed: bool


def finished_records(path: Path) -> tuple[list[Finished], int]:
    """What an output file already holds.

    Returns:
        Its complete records, and the bytes that they take; a half-written last line is not counted.
    Raises:
        RequestError: the file cannot be read, or a complete line is not the record that belongs there.
    """
    records: list[Finished] = []
    size = 0
    try:
        with path.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                record = _parse(line)
                if record is None or record["index"] != len(records):
                    place = f"line {len(records) + 1} is not record {len(records)} of an output"
                    raise RequestError(f"{path}: {place}; nothing was changed")
                seeded, failed = record["seq_seed"] is not None, record["error"] is not None
                records.append(Finished(record["custom_id"], seeded, failed))
                size += len(line)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror or error}") from error
    return records, size


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and set(record) == set(RECORD_KEYS) else None


def check_output(path: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses to write over an earlier output unless the user said what shall happen to it.

    Raises:
        RequestError: the file exists and holds something, or is a folder, or cannot be resumed.
    """
    if path.is_dir():
        raise RequestError(f"{path} is a folder; accepted: a file")
    if resume and path.exists() and not path.is_file():
        raise RequestError(f"{path} is no ordinary file, so a run into it cannot be resumed")
    if not resume and not overwrite and path.is_file() and path.stat().st_size:
        raise RequestError(f"{path} exists; --resume goes on where it ends, --overwrite replaces it")


def open_output(path: Path, keep: int) -> IO[bytes]:
    """The output file, cut to its first `keep` bytes and positioned there; a device or pipe is only opened.

    Raises:
        RequestError: the file cannot be opened.
    """
    try:
        if not path.is_file():
            return path.open("wb")
        stream = path.open("r+b")
        stream.truncate(keep)
        stream.seek(0, os.SEEK_END)
    except OSError as error:
        raise RequestError(f"{path}: cannot be written: {error.strerror or error}") from error
    return stream
