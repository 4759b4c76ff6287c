"""The command line: `counterpoint generate | ops | collect-env`, also `python -m optimized …`.

Knows names, options and exit codes; knows nothing about what a subcommand does (commands/), and imports nothing heavy,
so that --help is instant.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 3
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141

_EXIT_CODES = """\
exit codes:
  0    everything was done
  1    done, but at least one record holds an error
  2    nothing was done: bad options, files or model
  3    stopped half-way by an error
  130  interrupted (--resume goes on)
  141  the reader of the output went away
"""

_JSONL = """\
Each input line is a JSON object: "prompt" (text) or "prompt_token_ids" (ids), an optional "custom_id" (text or
integer), and any sampling parameter under its own name, which replaces the one given on the command line. Each line,
blank or bad ones too, gives exactly one output record, in order: "index" (line, from 0), "custom_id", "outputs",
"error".

"""

_Option = tuple[str, type[int] | type[float] | type[str] | type[bool], str]
#: (option, type, help) of the engine's options; the names are those of EngineConfig.
ENGINE_OPTIONS: tuple[_Option, ...] = (
    ("--max-num-seqs", int, "most sequences that run at one time"),
    ("--max-num-batched-tokens", int, "most token rows of one step"),
    ("--max-model-len", int, "most tokens of a sequence, prompt and output together"),
    ("--page-size", int, "tokens in a cache page"),
    ("--num-pages", int, "cache pages, page 0 (reserved) included"),
    ("--gpu-memory-utilization", float, "share of the device's memory that weights and caches may take"),
    ("--device", str, "auto (the CPU), cpu, cuda or cuda:1, …"),
    ("--enforce-eager", bool, "never capture decode steps as CUDA graphs"),
    ("--sync-guard", bool, "for debugging: an error where launching a step waits for a CUDA device"),
    ("--seed", int, "seed of the whole run, for requests without a --seq-seed"),
    ("--log-stats-interval", int, "engine steps between two log lines of statistics"),
    ("--yoco-mode", str, "bounded replay of decoder layers in prefill: off (default), mask or compact"),
    ("--yoco-keep-tokens", int, "last tokens of a prompt that enter decoder layers"),
    ("--async-scheduling", bool, "plan and launch a step before the tokens of the one before are known (default: on)"),
    ("--poison-unused", bool, "for debugging: fill unused cache memory with NaN codes before each step"),
    ("--logprobs-mode", str, "raw_logprobs (the model's own, default) or processed_logprobs (what was drawn from)"),
    ("--nextn", int, "most drafts of a sequence that a decode step verifies (default 0: none)"),
    ("--verification", str, "coupled (the text of no drafts at all, default) or ratio (its law alone)"),
    ("--penalised-residual", bool, "with ratio: draw what replaces a refused draft as DeepInfer does"),
    ("--verification-lengths", str, "fixed (every draft is verified, default) or scheduled (those worth their time)"),
    ("--confidence-table", str, "file that calibrates the draft's confidences"),
    ("--step-cost-folder", str, "folder that keeps what steps cost, for scheduled lengths"),
    ("--grammar-workers", int, "processes that compile grammars"),
    ("--grammar-timeout", float, "seconds to compile one grammar"),
    ("--grammar-cache-bytes", int, "memory for compiled grammars"),
)
#: (option, type, help) of the sampling parameters; the names are those of SamplingParams.
SAMPLING_OPTIONS: tuple[_Option, ...] = (
    ("--n", int, "samples of each prompt"),
    ("--max-tokens", int, "most new tokens of a sample (default 16)"),
    ("--min-tokens", int, "fewest new tokens before a stop"),
    ("--temperature", float, "0 is greedy (default 1)"),
    ("--top-k", int, "draw among the k most likely tokens"),
    ("--top-p", float, "draw among the most likely tokens that hold this mass"),
    ("--min-p", float, "draw among tokens at least this likely, relative to the most likely one"),
    ("--seq-seed", int, "seed of each request's draws"),
    ("--logprobs", int, "report the logprobs of this many most likely tokens, and the token's own"),
    ("--prompt-logprobs", int, "the same for the tokens of the prompt"),
    ("--presence-penalty", float, "taken off the logit of each token that the output holds, -2 to 2"),
    ("--frequency-penalty", float, "the same, times how often it holds it"),
    ("--repetition-penalty", float, "above 1: makes tokens of prompt and output less likely"),
)
LOG_LEVELS = ("debug", "info", "warning", "error")


class _Parser(argparse.ArgumentParser):
    """A parser, and so each of its subcommands', that refuses unknown options itself, with the nearest one it has."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """See argparse; ends the process with EXIT_USAGE where something is left over."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            from reference.spec.errors import nearest

            unknown = next((word.partition("=")[0] for word in rest if word.startswith("-")), None)
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(rest)}{nearest(unknown, known, '--') if unknown else ''}")
        return options, rest


def build_parser() -> argparse.ArgumentParser:
    """All subcommands and options."""
    parser = _Parser(
        prog="counterpoint",
        allow_abbrev=False,
        description="Runs DeepSeek-V4.1 models offline.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_generate(commands)
    ops = commands.add_parser("ops", allow_abbrev=False, help="print the table of operations, backends and providers")
    ops.add_argument("--json", action="store_true", help="as JSON")
    environment = commands.add_parser(
        "collect-env", allow_abbrev=False, help="print what a bug report should say about this machine"
    )
    environment.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_generate(commands: argparse._SubParsersAction[_Parser]) -> None:
    generate = commands.add_parser(
        "generate",
        allow_abbrev=False,
        help="complete prompts",
        description="Completes prompts: --prompt prints readable text, --input reads and writes jsonl.",
        epilog=_JSONL + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    generate.add_argument("--model", required=True, metavar="MODEL", help='"tiny", a checkpoint folder, or a hub id')
    generate.add_argument("--revision", help="branch, tag or commit of a hub id")
    source = generate.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated")
    source.add_argument("--input", metavar="FILE", help="a jsonl file, - for standard input")
    generate.add_argument("--output", default="-", metavar="FILE", help="a jsonl file, - for standard output (default)")
    existing = generate.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="go on where an interrupted output file ends")
    existing.add_argument("--overwrite", action="store_true", help="replace an output file that exists")
    generate.add_argument(
        "--max-line-bytes", type=int, default=2**24, metavar="N", help="longest input line (default 16 MiB)"
    )
    generate.add_argument(
        "--progress", action=argparse.BooleanOptionalAction, help="progress bar (default: on a terminal)"
    )
    generate.add_argument("--log-level", choices=LOG_LEVELS, default="warning", help="log to stderr (default warning)")
    sampling = generate.add_argument_group("sampling")
    for option, kind, text in SAMPLING_OPTIONS:
        sampling.add_argument(option, type=kind, help=text)
    sampling.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; may be repeated")
    sampling.add_argument(
        "--stop-token-ids", type=int, action="append", metavar="ID", help="end at this id; may be repeated"
    )
    sampling.add_argument(
        "--ignore-eos", action="store_true", default=None, help="go on past the end-of-sequence token"
    )
    engine = generate.add_argument_group("engine")
    for option, kind, text in ENGINE_OPTIONS:
        if kind is bool:
            engine.add_argument(option, action=argparse.BooleanOptionalAction, help=text)
        else:
            engine.add_argument(option, type=kind, help=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments without the program's name, None: the process's own.
    Returns:
        The exit code.
    """
    options = build_parser().parse_args(argv)
    with _logging_to_stderr(getattr(options, "log_level", "warning")):
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Runs the command that was parsed, and turns how it ends into an exit code."""
    from reference.spec.errors import CounterpointError

    command = importlib.import_module(f"optimized.commands.{options.command.replace('-', '_')}")
    try:
        code: int = command.run(options)
        sys.stdout.flush()
    except CounterpointError as error:
        sys.stderr.write(f"counterpoint {options.command}: {error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write(f"counterpoint {options.command}: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # its buffer can go nowhere, so the interpreter must not try at exit
        return EXIT_CLOSED_PIPE
    except Exception:
        logging.getLogger(__name__).exception("stopped by an error")
        return EXIT_STOPPED
    return code


@contextmanager
def _logging_to_stderr(level: str) -> Iterator[None]:
    """Sends this project's log lines to stderr while a command runs; the root logger is left alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("optimized", "reference")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        for logger, before in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(before)
