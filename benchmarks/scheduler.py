"""Microseconds a decode step costs the host: `python -m benchmarks.scheduler --running 1,16,64,256,1024,4096`.

A step is one call of schedule and one of commit; the arrays of the result are made between them, untimed, and no model
runs. Both schedulers do the same steps in the same run, rounds alternate, medians of the decode steps are reported.
Under memory pressure the pool is all but full, so that steps preempt; the requests left in a step stand beside it.
Then, for each number of requests, what the choice of a step's verification budget costs both voices.
Knows the common surface of the two schedulers; knows nothing about how either works.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from benchmarks import provenance
from benchmarks.arguments import at_least, new_file, sizes, told_in_a_line
from optimized import _core
from reference import verification_lengths
from reference.scheduler import Scheduler as ReferenceScheduler

logger = logging.getLogger(__name__)

PAGE_SIZE = 16
CONTEXT = 256
MAX_TOKENS = 512

WARM_UP = PAGE_SIZE
"""Decode steps before the timed ones: each request takes a page in them, and under pressure the pool is then empty."""

TARGETS = {256: 60.0, 1024: 300.0}
"""Most microseconds a step of the core may take under memory pressure, by running requests."""

DRAFTS = 5
"""Of each request, when a budget is chosen."""

BUDGET_TARGETS = {256: 100.0}
"""Most microseconds that the core's choice of a budget may take, by running requests."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """`running` requests of about CONTEXT tokens. Under pressure the pool lasts for the warm-up and no longer."""

    running: int
    pressure: bool
    nextn: int
    max_model_len: int

    def limits(self) -> dict[str, int | float]:
        """Arguments of the constructor."""
        held = sum(-(-(length + self.nextn + 1) // PAGE_SIZE) for length in self.prompt_lengths())
        lifetime = -(-(CONTEXT + PAGE_SIZE + MAX_TOKENS + self.nextn + 1) // PAGE_SIZE)
        enough = max(lifetime, held + self.running)
        return {
            "num_pages": 1 + (enough if self.pressure else self.running * lifetime),
            "page_size": PAGE_SIZE,
            "num_slots": 1 + self.running,
            "max_num_seqs": self.running,
            "max_num_batched_tokens": self.running * (CONTEXT + PAGE_SIZE + self.nextn + 1),
            "max_model_len": self.max_model_len,
            "nextn": self.nextn,
            "max_cache_usage": 1.0,
        }

    def prompt_lengths(self) -> list[int]:
        """Spread over a page, so that in every step some requests need a new one."""
        return [CONTEXT + index % PAGE_SIZE for index in range(self.running)]


class Driver(Protocol):
    """A scheduler with the arrays it wants."""

    scheduler: Any

    def add(self, request_id: int, length: int) -> None:
        """Queue a request."""

    def step(self) -> tuple[int, float]:
        """One step that gives one token to every sampled row. Returns its requests and the microseconds of both calls.

        Raises RuntimeError when there is nothing to run.
        """


class CoreDriver:
    """The C++ core with NumPy arrays."""

    def __init__(self, workload: Workload) -> None:
        self.scheduler = _core.Scheduler(**workload.limits())  # type: ignore[arg-type]

    def add(self, request_id: int, length: int) -> None:
        """Queue a request."""
        self.scheduler.add(request_id, np.full(length, 7, np.int64), MAX_TOKENS)

    def step(self) -> tuple[int, float]:
        """One step."""
        begin = time.perf_counter()
        plan = self.scheduler.schedule()
        middle = time.perf_counter()
        if plan is None:
            raise RuntimeError("nothing to run")
        counts = (plan.sample_rows >= 0).astype(np.int32)
        tokens = np.full(int(counts.sum()), 7, np.int64)
        finished = np.zeros(counts.size, np.bool_)
        ids = plan.request_ids
        again = time.perf_counter()
        self.scheduler.commit(plan.step_id, ids, tokens, counts, finished)
        return len(counts), 1e6 * (middle - begin + time.perf_counter() - again)


class ReferenceDriver:
    """The reference with lists."""

    def __init__(self, workload: Workload) -> None:
        self.scheduler = ReferenceScheduler(**workload.limits())  # type: ignore[arg-type]

    def add(self, request_id: int, length: int) -> None:
        """Queue a request."""
        self.scheduler.add(request_id, [7] * length, MAX_TOKENS)

    def step(self) -> tuple[int, float]:
        """One step."""
        begin = time.perf_counter()
        plan = self.scheduler.schedule()
        middle = time.perf_counter()
        if plan is None:
            raise RuntimeError("nothing to run")
        counts = [int(row >= 0) for row in plan.sample_rows]
        tokens, finished = [7] * sum(counts), [False] * len(counts)
        again = time.perf_counter()
        self.scheduler.commit(plan.step_id, plan.request_ids, tokens, counts, finished)
        return len(counts), 1e6 * (middle - begin + time.perf_counter() - again)


@dataclasses.dataclass(frozen=True)
class Figure:
    """Medians over the timed steps of all rounds.

    optimized, reference: microseconds a step; rows: requests in a step of the core; preemptions: of the core, a round.
    """

    workload: Workload
    optimized: float
    reference: float
    rows: float
    preemptions: int


def decode_steps(driver: Driver, workload: Workload, steps: int) -> tuple[list[int], list[float]]:
    """Prefill all requests in one step, warm up, then time `steps` decode steps: requests and microseconds of each."""
    for index, length in enumerate(workload.prompt_lengths()):
        driver.add(index, length)
    for _ in range(1 + WARM_UP):
        driver.step()
    requests, took = zip(*[driver.step() for _ in range(steps)], strict=True)
    return list(requests), list(took)


def measure(workload: Workload, steps: int, reference_steps: int, rounds: int) -> Figure:
    """One row: alternating rounds of both schedulers, each from an empty pool."""
    rows: list[int] = []
    core: list[float] = []
    reference: list[float] = []
    preemptions = 0
    for number in range(rounds):
        driver = CoreDriver(workload)
        requests, took = decode_steps(driver, workload, steps)
        rows, core = rows + requests, core + took
        preemptions = driver.scheduler.num_preemptions
        reference += decode_steps(ReferenceDriver(workload), workload, reference_steps)[1]
        logger.info("round %d of %s", number + 1, workload)
    middle = statistics.median
    return Figure(workload, middle(core), middle(reference), middle(rows), preemptions)


@dataclasses.dataclass(frozen=True)
class BudgetFigure:
    """Medians: microseconds that one choice of a budget takes."""

    running: int
    optimized: float
    reference: float


def measure_budget(running: int, steps: int, reference_steps: int) -> BudgetFigure:
    """Budgets of `running` requests with DRAFTS drafts each, from confidences that are new in every step.

    Raises RuntimeError when the two voices choose differently.
    """
    rng = np.random.default_rng(running)
    most = np.full(running, DRAFTS, np.int32)
    cost = 64.0 + np.arange(1.0 + running * (1 + DRAFTS))
    core: list[float] = []
    reference: list[float] = []
    for step in range(steps):
        survivals = np.cumprod(rng.random((running, DRAFTS), np.float32), axis=1, dtype=np.float32)
        begin = time.perf_counter()
        chosen = _core.choose_budget(survivals, most, cost)
        core.append(1e6 * (time.perf_counter() - begin))
        if step < reference_steps:
            rows, costs = survivals.tolist(), cost.tolist()
            begin = time.perf_counter()
            expected = verification_lengths.choose_budget(rows, costs.__getitem__)
            reference.append(1e6 * (time.perf_counter() - begin))
            if chosen != expected:
                raise RuntimeError(f"budget of {running} requests: core {chosen}, reference {expected}")
    return BudgetFigure(running, statistics.median(core), statistics.median(reference))


def budget_table(figures: list[BudgetFigure]) -> list[str]:
    """The same for budgets."""
    lines = ["| requests | drafts each | budget by the core, µs | reference | ratio |", "|---:|---:|---:|---:|---:|"]
    for figure in figures:
        ratio = figure.reference / figure.optimized
        lines.append(
            f"| {figure.running} | {DRAFTS} | {figure.optimized:.1f} | {figure.reference:.0f} | {ratio:.0f}x |"
        )
    return lines


def table(figures: list[Figure]) -> list[str]:
    """The figures as lines of a Markdown table."""
    lines = [
        "| requests | memory pressure | max_model_len | in a step | preempted | core, µs a step | reference | ratio |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for figure in figures:
        load = figure.workload
        cells = (
            load.running,
            "yes" if load.pressure else "no",
            load.max_model_len,
            f"{figure.rows:.0f}",
            figure.preemptions,
            f"{figure.optimized:.1f}",
            f"{figure.reference:.0f}",
            f"{figure.reference / figure.optimized:.0f}x",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument(
        "--running", type=sizes, default="1,16,64,256,1024,4096", help="running requests, comma separated"
    )
    parser.add_argument("--nextn", type=at_least(0), default=0, help="drafts the pages leave room for (default: 0)")
    parser.add_argument("--max-model-len", type=sizes, default="8192,1048576", help="context limits, comma separated")
    parser.add_argument(
        "--steps", type=at_least(1), default=64, help="timed decode steps a round of the core (default: 64)"
    )
    parser.add_argument("--reference-steps", type=at_least(1), default=8, help="the same of the reference (default: 8)")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="rounds; the median of all steps counts (default: 3)"
    )
    parser.add_argument("--report", type=new_file, help="write the figures to this JSON file too")
    options = parser.parse_args(arguments)
    made, shortest = 1 + WARM_UP + max(options.steps, options.reference_steps), min(options.max_model_len)
    least = CONTEXT + PAGE_SIZE + made + options.nextn
    if options.nextn >= PAGE_SIZE:
        parser.error(f"argument --nextn: {options.nextn} is not below the page's size, {PAGE_SIZE}")
    if made > MAX_TOKENS:
        parser.error(f"argument --steps, --reference-steps: {made} tokens a request in all, not at most {MAX_TOKENS}")
    if shortest < least:
        parser.error(f"argument --max-model-len: {shortest} is not at least {least}, so that no request ends early")
    return options


@told_in_a_line
def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status is 1 if a target was measured and missed."""
    options = parse(arguments)
    origin = provenance.describe("benchmarks.scheduler", list(arguments), "cpu", 1)
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    figures = []
    for running in options.running:
        for pressure in (False, True):
            for length in options.max_model_len:
                workload = Workload(running, pressure, options.nextn, length)
                figures.append(measure(workload, options.steps, options.reference_steps, options.rounds))
    sys.stdout.write("\n".join(table(figures)) + "\n")
    counts = options.running
    budgets = [measure_budget(running, options.steps, options.reference_steps) for running in counts]
    sys.stdout.write("\n".join(["", *budget_table(budgets)]) + "\n")
    if options.report is not None:
        record = {
            "origin": origin,
            "figures": [dataclasses.asdict(figure) for figure in figures],
            "budgets": [dataclasses.asdict(figure) for figure in budgets],
        }
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    missed = False
    for figure in figures:
        target = TARGETS.get(figure.workload.running)
        if target is not None and figure.workload.pressure:
            missed = missed or figure.optimized > target
            verdict = "reached" if figure.optimized <= target else "missed"
            sys.stdout.write(
                f"target {target:.0f} µs at {figure.workload.running} under pressure, max_model_len "
                f"{figure.workload.max_model_len}: {verdict} ({figure.optimized:.1f} µs)\n"
            )
    for budget in budgets:
        target = BUDGET_TARGETS.get(budget.running)
        if target is not None:
            missed = missed or budget.optimized > target
            verdict = "reached" if budget.optimized <= target else "missed"
            sys.stdout.write(
                f"target {target:.0f} µs for a budget of {budget.running}: {verdict} ({budget.optimized:.1f} µs)\n"
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
