"""Runs the cases of a check and gathers what they found, in their order; knows no check and prints nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from equivalence import ledger, processes, replays
from equivalence.cases import Case, Options
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.registry import Check, CheckModule

logger = logging.getLogger(__name__)


@dataclass
class CaseResult:
    """One case that ran.

    seconds: wall time; replay: the file written when it differs, else None; known_bad: the ledger's reason, or empty.
    """

    case: Case
    findings: Findings
    seconds: float
    replay: Path | None = None
    known_bad: str = ""


@dataclass
class CheckResult:
    """One check that ran. setup_error: why it could not start, empty when it could."""

    check: str
    options: Options
    results: list[CaseResult] = field(default_factory=list)
    setup_error: str = ""
    seconds: float = 0.0

    @property
    def cases(self) -> int:
        """How many cases ran."""
        return len(self.results)

    @property
    def differences(self) -> int:
        """How many differences all cases found."""
        return sum(len(result.findings.differences) for result in self.results)

    @property
    def passed(self) -> bool:
        """At least one case ran and none differs."""
        return self.cases > 0 and self.differences == 0 and not self.setup_error

    @property
    def last_line(self) -> str:
        """`CHECK: N cases, D differences`."""
        return f"{self.check}: {self.cases} cases, {self.differences} differences"


def run_check(
    check: Check,
    options: Options,
    report: Callable[[CaseResult], None] = lambda result: None,
    replay_folder: Path = replays.FOLDER,
    jobs: int = 1,
) -> CheckResult:
    """Run every selected case.

    report: called after each, in the order of the cases; replay_folder: where a differing case leaves its file;
    jobs: how many processes run cases; with 1 it is this one.
    """
    outcome = CheckResult(check.name, options)
    begin = time.perf_counter()
    try:
        cases = [case for case in check.load().cases(options) if options.selects(case.name)]
        with closing(_results(check, options, cases, replay_folder, jobs)) as results:
            for result in results:
                outcome.results.append(result)
                report(result)
                if options.fail_fast and result.findings.differences:
                    break
    except SetupError as error:
        outcome.setup_error = str(error)
    outcome.seconds = time.perf_counter() - begin
    return outcome


def _results(
    check: Check, options: Options, cases: list[Case], replay_folder: Path, jobs: int
) -> Generator[CaseResult, None, None]:
    prepare = partial(_prepare, check, options, replay_folder)
    if jobs == 1:
        yield from map(prepare(), cases)
    else:
        yield from processes.in_order(prepare, cases, jobs, partial(_died, options, replay_folder))


def _prepare(check: Check, options: Options, replay_folder: Path) -> Callable[[Case], CaseResult]:
    """What runs a case and, where it differs, leaves the replay of a smaller one."""
    module = check.load()

    def run(case: Case) -> CaseResult:
        result = run_case(module, case, options)
        if result.findings.differences:
            result.replay = replays.write(module.shrink(case, options), options, replay_folder)
        return result

    return run


def _died(options: Options, replay_folder: Path, case: Case, how: str) -> CaseResult:
    """The result of a case that took its process with it: no smaller case is looked for."""
    findings = Findings()
    findings.differ(case.name, "died", f"the process that ran this case {how}")
    return CaseResult(case, findings, 0.0, replays.write(case, options, replay_folder))


def run_case(module: CheckModule, case: Case, options: Options) -> CaseResult:
    """Run one case. An exception inside it is a difference of kind `raised`, so that the other cases still run."""
    begin = time.perf_counter()
    try:
        findings = module.run(case, options)
    except Exception as error:  # the boundary of a case: whatever a voice raises is a finding
        logger.debug("case %s raised", case.name, exc_info=True)
        findings = Findings()
        findings.differ(case.name, "raised", f"{type(error).__name__}: {error}")
    if not findings.comparisons and not findings.differences:
        findings.differ(case.name, "pack", "nothing was compared")
    known_bad = ledger.settle(case, findings)
    return CaseResult(case, findings, time.perf_counter() - begin, known_bad=known_bad)
