"""Microseconds of a decode step in the C++ core and in the reference scheduler: `python -m benchmarks.scheduler`.

Knows the common surface of the two; knows nothing about how either works. Accounting: the time of `schedule` and
`commit` of a decode step, median over the steps; making the step's tokens is not counted, prefill steps are not either.
Under pressure the pool has half of the pages that all requests need at their longest, so that requests are preempted
and come back all the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import provenance
from optimized import _core
from reference import scheduler as plain

PAGE_SIZE = 128
PROMPT, OUTPUT = 500, 400
#: Microseconds that a step may take, under pressure or not, by the number of running requests.
TARGETS = {256: 60.0, 1024: 300.0}


@dataclasses.dataclass(frozen=True)
class Load:
    """`running` requests at a time, twice as many in all."""

    running: int
    pressure: bool
    max_model_len: int = 4096

    def options(self) -> dict[str, int | float]:
        """Arguments of either scheduler."""
        lifetime = (PROMPT + OUTPUT + 1) // PAGE_SIZE + 1
        pages = self.running * (lifetime + 1)  # one to spare each
        return {
            "num_pages": 1 + (max(pages // 2, lifetime) if self.pressure else pages),
            "page_size": PAGE_SIZE,
            "num_slots": self.running + 1,
            "max_num_seqs": self.running,
            "max_num_batched_tokens": max(8192, self.running),
            "max_model_len": self.max_model_len,
            "max_cache_usage": 1.0,
        }


@dataclasses.dataclass(frozen=True)
class Figure:
    """Microseconds a decode step of either. rows: mean requests in a step of the core, preemptions in its run,
    plan_bytes of its last plan."""

    load: Load
    core: float
    reference: float
    rows: float
    preemptions: int
    plan_bytes: int


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--running", default="1,16,64,256,1024,4096", help="running requests, comma separated")
    parser.add_argument("--steps", type=int, default=600, help="decode steps of the core (default: 600)")
    parser.add_argument("--reference-steps", type=int, default=20, help="decode steps of the reference (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="seed of prompt and output lengths (default: 0)")
    parser.add_argument("--report", type=Path, help="write the figures to this JSON file too")
    return parser.parse_args(arguments)


def lengths(load: Load, seed: int) -> list[tuple[int, int]]:
    """Prompt and output tokens of every request."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(PROMPT // 2, PROMPT, size=2 * load.running).tolist()
    outputs = rng.integers(OUTPUT // 2, OUTPUT, size=2 * load.running).tolist()
    return list(zip(prompts, outputs, strict=True))


def measure_core(load: Load, steps: int, seed: int) -> Figure:
    """The core alone; `reference` is not a number yet."""
    core = _core.Scheduler(**load.options())  # type: ignore[arg-type]
    for request_id, (prompt, output) in enumerate(lengths(load, seed)):
        core.add(request_id, np.zeros(prompt, np.int64), output)
    times: list[float] = []
    rows = 0
    plan_bytes = 0
    while len(times) < steps and core.has_work():
        begin = time.perf_counter()
        plan = core.schedule()
        took = time.perf_counter() - begin
        if plan is None:
            raise RuntimeError("the core has work, but no step\n" + core.dump())
        counts = (plan.sample_rows >= 0).astype(np.int32)
        tokens, finished = np.zeros(int(counts.sum()), np.int64), np.zeros(plan.num_requests, np.bool_)
        request_ids = plan.request_ids
        begin = time.perf_counter()
        core.commit(plan.step_id, request_ids, tokens, counts, finished)
        took += time.perf_counter() - begin
        if plan.kind == "decode":
            times.append(took)
            rows += plan.num_requests
            plan_bytes = plan.page_table.nbytes + plan.num_requests * (8 + 6 * 4 + 1) + 4 + plan.num_rows * 16
    median = 1e6 * statistics.median(times)
    return Figure(load, median, float("nan"), rows / len(times), core.num_preemptions, plan_bytes)


def measure_reference(load: Load, steps: int, seed: int) -> float:
    """Microseconds a decode step of the reference scheduler."""
    options: dict[str, Any] = load.options()
    scheduler = plain.Scheduler(**options)
    for request_id, (prompt, output) in enumerate(lengths(load, seed)):
        scheduler.add(request_id, [0] * prompt, output)
    times: list[float] = []
    while len(times) < steps and scheduler.has_work():
        begin = time.perf_counter()
        plan = scheduler.schedule()
        took = time.perf_counter() - begin
        if plan is None:
            raise RuntimeError("the reference has work, but no step\n" + scheduler.dump())
        counts = [int(row >= 0) for row in plan.sample_rows]
        begin = time.perf_counter()
        scheduler.commit(plan.step_id, plan.request_ids, [0] * sum(counts), counts, [False] * len(counts))
        took += time.perf_counter() - begin
        if plan.kind == "decode":
            times.append(took)
    return 1e6 * statistics.median(times)


def table(figures: list[Figure]) -> list[str]:
    """The figures as lines of a Markdown table."""
    lines = [
        "| running | pressure | max_model_len | core, us | reference, us | ratio | rows | preemptions | plan, bytes |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for f in figures:
        cells = (
            f.load.running,
            "yes" if f.load.pressure else "no",
            f.load.max_model_len,
            f"{f.core:.1f}",
            f"{f.reference:.0f}",
            f"{f.reference / f.core:.0f}x",
            f"{f.rows:.0f}",
            f.preemptions,
            f.plan_bytes,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status is 1 if a target was measured and missed."""
    options = parse(arguments)
    origin = provenance.describe("benchmarks.scheduler", list(arguments), "cpu", 1)
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    counts = [int(count) for count in options.running.split(",")]
    loads = [Load(count, pressure) for count in counts for pressure in (False, True)]
    loads += [Load(count, False, 1 << 20) for count in counts if count == 256]
    figures = []
    for load in loads:
        core = measure_core(load, options.steps, options.seed)
        reference = measure_reference(load, options.reference_steps, options.seed)
        figures.append(dataclasses.replace(core, reference=reference))
    sys.stdout.write("\n".join(table(figures)) + "\n")
    if options.report is not None:
        record = {"origin": origin, "figures": [dataclasses.asdict(figure) for figure in figures]}
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    judged = [f for f in figures if f.load.running in TARGETS]
    for f in judged:
        target = TARGETS[f.load.running]
        verdict = "reached" if f.core <= target else "missed"
        pressure = "under" if f.load.pressure else "without"
        sys.stdout.write(
            f"target {target:.0f} us at {f.load.running} requests {pressure} pressure: {verdict} ({f.core:.1f} us)\n"
        )
    return int(any(f.core > TARGETS[f.load.running] for f in judged))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
