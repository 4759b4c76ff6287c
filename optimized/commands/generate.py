"""`counterpoint generate`: prompts from the command line or from jsonl, through the engine, to text or jsonl.

Knows the order of input lines and output records; knows nothing about how a line is read, a record written or a token
made.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, BinaryIO

from optimized.cli import ENGINE_OPTIONS, EXIT_OK, EXIT_SOME_FAILED, EXIT_STOPPED, SAMPLING_OPTIONS
from optimized.commands.jsonl_input import LineError, LineRequest, parse_line, read_lines
from optimized.commands.jsonl_output import (
    RecordWriter,
    check_output,
    error_record,
    finished_records,
    open_output,
    output_record,
)
from optimized.engine.progress import Progress
from optimized.llm import LLM
from reference.spec.errors import CounterpointError, RequestError
from reference.spec.sampling import SamplingParams

STANDARD = "-"


def run(options: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    sampling = _given(options, [name for name, *_ in SAMPLING_OPTIONS] + ["--stop", "--stop-token-ids", "--ignore-eos"])
    params = SamplingParams(**sampling)
    if options.prompt is not None:
        _refuse_file_options(options)
        return _print_completions(_load(options), options, params)
    return _Job(options, sampling).run()


def _given(options: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """The options that were given, under their Python names."""
    values = {name[2:].replace("-", "_"): getattr(options, name[2:].replace("-", "_")) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _load(options: argparse.Namespace) -> LLM:
    return LLM(options.model, revision=options.revision, **_given(options, [name for name, *_ in ENGINE_OPTIONS]))


def _shows_progress(options: argparse.Namespace) -> bool:
    return sys.stderr.isatty() if options.progress is None else bool(options.progress)


def _refuse_file_options(options: argparse.Namespace) -> None:
    for name in ("resume", "overwrite"):
        if getattr(options, name):
            raise RequestError(f"--{name} goes with --input and --output, not with --prompt")
    if options.output != STANDARD:
        raise RequestError("--output goes with --input, not with --prompt")


def _print_completions(llm: LLM, options: argparse.Namespace, params: SamplingParams) -> int:
    """Readable text: each prompt with its continuation."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    start = time.monotonic()
    outputs = llm.generate(options.prompt, params, use_tqdm=_shows_progress(options))
    seconds = time.monotonic() - start
    for output in outputs:
        for completion in output.outputs:
            text = completion.text if completion.error is None else f" [{completion.error}]"
            sys.stdout.write(f"{output.prompt}{text}\n\n")
    tokens = llm.statistics.generated_tokens
    sys.stderr.write(f"{tokens} tokens in {seconds:.2f} s, {tokens / max(seconds, 1e-9):.1f} tokens/s\n")
    failed = any(one.error is not None for output in outputs for one in output.outputs)
    return EXIT_SOME_FAILED if failed else EXIT_OK


class _Job:
    """One run over a jsonl input."""

    def __init__(self, options: argparse.Namespace, sampling: dict[str, Any]) -> None:
        if options.max_line_bytes < 2:
            raise RequestError(f"--max-line-bytes: got {options.max_line_bytes}; accepted: an integer from 2")
        self._options = options
        self._sampling = sampling
        self._pending: deque[LineRequest | LineError] = deque()
        self._index = 0
        self._seeds_used = 0
        self._failed_before = 0

    def run(self) -> int:
        """Opens input and output, skips what is done, and does the rest."""
        options = self._options
        with ExitStack() as stack:
            source = self._open_input(stack)
            lines = (
                parse_line(one, self._sampling, options.max_line_bytes)
                for one in read_lines(source, options.max_line_bytes)
            )
            keep = self._skip_finished(lines)
            llm = _load(options)
            llm.skip_seeds(self._seeds_used)
            sink: IO[bytes] = sys.stdout.buffer
            if options.output != STANDARD:
                sink = stack.enter_context(open_output(Path(options.output), keep))
            writer = RecordWriter(sink)
            progress = stack.enter_context(
                Progress(None, llm.statistics, enabled=_shows_progress(options), done=self._index)
            )
            try:
                self._do(llm, lines, writer, progress)
            except CounterpointError as error:
                sys.stderr.write(f"counterpoint generate: stopped after {self._index} records: {error}\n")
                return EXIT_STOPPED
        return EXIT_SOME_FAILED if writer.failed + self._failed_before else EXIT_OK

    def _open_input(self, stack: ExitStack) -> BinaryIO:
        options = self._options
        if options.input == STANDARD:
            return sys.stdin.buffer
        path = Path(options.input)
        try:
            output = None if options.output == STANDARD else Path(options.output)
            if output is not None and path.exists() and output.exists() and path.samefile(output):
                raise RequestError(f"--input and --output are the same file {path}")
            return stack.enter_context(path.open("rb"))
        except OSError as error:
            raise RequestError(f"--input: {path} cannot be read: {error.strerror or error}") from error

    def _skip_finished(self, lines: Iterator[LineRequest | LineError]) -> int:
        """Looks at the output file; with --resume, passes over the input lines that it holds already.

        Returns:
            Bytes of the output that stay.
        """
        options = self._options
        path = Path(options.output)
        if options.output == STANDARD:
            if options.resume or options.overwrite:
                raise RequestError("--resume and --overwrite need an --output file")
            return 0
        check_output(path, resume=options.resume, overwrite=options.overwrite)
        if not options.resume or not path.exists():
            return 0
        records, size = finished_records(path)
        for index, (custom_id, seeded, failed) in enumerate(records):
            line = next(lines, None)
            if line is None:
                raise RequestError(f"{path} holds {len(records)} records, but the input has only {index} lines")
            if line.custom_id != custom_id:
                raise RequestError(
                    f"{path}: record {index} has custom_id {custom_id!r}, the input line {line.custom_id!r}: "
                    "the output belongs to another input"
                )
            self._seeds_used += seeded and isinstance(line, LineRequest) and line.params.seq_seed is None
            self._failed_before += failed
        self._index = len(records)
        return size

    def _do(self, llm: LLM, lines: Iterator[LineRequest | LineError], writer: RecordWriter, progress: Progress) -> None:
        """Runs the good lines and writes every line's record in order."""
        with closing(llm.stream(self._requests(lines), progress.step)) as outputs:
            for output in outputs:
                self._write_bad_lines(writer, progress)
                line = self._pending.popleft()
                writer.write(output_record(self._index, line.custom_id, output))
                self._index += 1
        self._write_bad_lines(writer, progress)

    def _requests(self, lines: Iterator[LineRequest | LineError]) -> Iterator[tuple[Any, SamplingParams]]:
        """The good lines; bad ones are kept in their place among the pending ones."""
        for line in lines:
            self._pending.append(line)
            if isinstance(line, LineRequest):
                yield line.prompt, line.params

    def _write_bad_lines(self, writer: RecordWriter, progress: Progress) -> None:
        """Writes the records of the bad lines at the head."""
        while self._pending and isinstance(bad := self._pending[0], LineError):
            self._pending.popleft()
            writer.write(error_record(self._index, bad))
            self._index += 1
            progress.step(1)
