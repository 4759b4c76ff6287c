"""The command line: list, run, replay, mutations; knows the registry and the runner, no check by name.

Exit status: 0 everything agrees; 1 something differs, nothing ran, or a mutation escaped; 2 wrong usage; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from equivalence import registry, replays
from equivalence.cases import Options
from equivalence.errors import SetupError, UsageError
from equivalence.runner import CaseResult, CheckResult, run_case, run_check

SHOWN_DIFFERENCES = 5


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    arguments = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        return int(arguments.command(arguments))
    except UsageError as error:
        _complain(str(error))
        return 2
    except SetupError as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130


def list_checks(arguments: argparse.Namespace) -> int:
    """Name every check with its summary."""
    width = max(map(len, registry.CHECKS))
    for check in registry.CHECKS.values():
        _say(f"{check.name:<{width}} {check.summary} [{', '.join(check.backends)}]")
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run checks and, on request, write the report."""
    options = Options(
        arguments.backend, arguments.cases, arguments.seed, tuple(arguments.only or ()), arguments.fail_fast
    )
    checks = registry.find(arguments.checks, options.backend)
    if arguments.report:
        from equivalence import report

        _check_writable(arguments.report)
        origin = report.origin(arguments.argv)
    results = [run_check(check, options, _show_case, jobs=arguments.jobs) for check in checks]
    if arguments.report:
        _say(f"report: {arguments.report} and {report.write(results, arguments.report, origin)}")
    return _conclude(results)


def replay(arguments: argparse.Namespace) -> int:
    """Run the one case of a replay file."""
    case, options = replays.read(arguments.file)
    check = registry.find([case.check], options.backend)[0]
    outcome = CheckResult(check.name, options, [run_case(check.load(), case, options)])
    _show_case(outcome.results[0])
    return _conclude([outcome])


def mutations(arguments: argparse.Namespace) -> int:
    """Plant every fault of the named checks and count those that turn the check red."""
    from equivalence.mutations import engine

    caught = total = 0
    for check in registry.find(arguments.checks, arguments.backend):
        outcome = engine.run(check.name, arguments.only or (), _say, arguments.backend)
        caught, total = caught + outcome[0], total + outcome[1]
    _say(f"caught {caught} of {total}")
    return 0 if total > 0 and caught == total else 1


def _check_writable(path: Path) -> None:
    """Raises UsageError where a report could not be written, before anything has run."""
    if path.is_dir():
        raise UsageError(f"--report {path}: is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UsageError(f"--report {path}: {error.strerror}") from error


def _show_case(result: CaseResult) -> None:
    found = result.findings
    verdict = f"{len(found.differences)} DIFFERENCES" if found.differences else "agrees"
    verdict = f"differs as known ({result.known_bad})" if result.known_bad and not found.differences else verdict
    notes = f", {len(found.close_calls)} close calls" if found.close_calls else ""
    notes += f", {len(found.not_compared)} not compared" if found.not_compared else ""
    _say(f"  {result.case.name}: {verdict} ({found.comparisons} comparisons{notes}, {result.seconds:.1f} s)")
    for figure in found.figures:
        _say(f"  - {figure}")
    for difference in found.differences[:SHOWN_DIFFERENCES]:
        _say(f"    {difference.kind} {difference.item}: {difference.detail}")
    if len(found.differences) > SHOWN_DIFFERENCES:
        _say(f"    and {len(found.differences) - SHOWN_DIFFERENCES} more")
    if result.replay:
        _say(f"    again: python -m equivalence replay {result.replay}")


def _conclude(results: list[CheckResult]) -> int:
    for result in results:
        if result.setup_error:
            _complain(f"{result.check}: {result.setup_error}")
    for result in results:
        _say(result.last_line)
    return 0 if all(result.passed for result in results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m equivalence", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="name the checks")
    listing.set_defaults(command=list_checks)

    running = commands.add_parser("run", help="run checks", allow_abbrev=False)
    running.add_argument("checks", nargs="+", metavar="CHECK")
    running.add_argument("--cases", type=_positive, metavar="N", help="how many generated cases")
    running.add_argument(
        "--seed", type=_natural, default=0, metavar="S", help="root of the generated cases (default 0)"
    )
    running.add_argument("--report", type=Path, metavar="F.json", help="write JSON here and Markdown beside it")
    running.add_argument(
        "--only", action="append", metavar="NAME", help="only cases whose name begins or matches so (repeatable)"
    )
    running.add_argument(
        "--jobs", type=_positive, default=1, metavar="N", help="how many processes run cases (default 1)"
    )
    running.add_argument("--fail-fast", action="store_true", help="stop at the first case that differs")
    running.set_defaults(command=run)

    again = commands.add_parser("replay", help="run one recorded case again", allow_abbrev=False)
    again.add_argument("file", type=Path, metavar="F")
    again.set_defaults(command=replay)

    planting = commands.add_parser("mutations", help="plant faults; every one must be caught", allow_abbrev=False)
    planting.add_argument("checks", nargs="+", metavar="CHECK")
    planting.add_argument("--only", action="append", metavar="NAME", help="only the fault of this name (repeatable)")
    planting.set_defaults(command=mutations)

    for each in (running, planting):
        each.add_argument("--backend", default="cpu", help="backend of the engine under test (default cpu)")
    return parser


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _complain(line: str) -> None:
    sys.stderr.write(f"error: {line}\n")
    sys.stderr.flush()
