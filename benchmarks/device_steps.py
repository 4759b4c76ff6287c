"""Host and device time of a decode step on a CUDA device, eager and captured: `python -m benchmarks.device_steps`.

Knows the worker and the scheduler; knows nothing about how either works. A step is waited for before the next is
planned. Host: from the plan to the return of the launch. Device: between two events around the launch, so a device that
waits for its host is in it. Beside the figures stand what bounds them, measured in the same run: the bandwidth of a
copy, the smallest kernel in a graph, what a launch costs the host, and the operations of a step that launch something.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import provenance
from benchmarks.arguments import at_least, new_file, sizes, told_in_a_line
from optimized._core import Scheduler, StepPlan
from optimized.config import EngineConfig
from optimized.worker.worker import Worker
from reference import tiny
from reference.spec.config import ModelConfig

WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Figure:
    """Medians over the steps of one batch, in milliseconds. operations: of an eager step."""

    batch: int
    mode: str
    host_ms: float
    device_ms: float
    operations: int | None


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """What the device can do at best. copy: bytes read and written per second. kernel_us: the smallest kernel in a
    graph. launch_us: the host's time for one eager operation."""

    copy: float
    kernel_us: float
    launch_us: float


class CountLaunches(TorchDispatchMode):
    """Counts the operations whose results are not views of what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device_steps", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--model", default="tiny", help="`tiny` or a checkpoint folder (default: tiny)")
    parser.add_argument("--batch", type=sizes, default="1,8,64", help="batch sizes, comma separated (default: 1,8,64)")
    parser.add_argument("--context", type=at_least(1), default=512, help="prompt tokens (default: 512)")
    parser.add_argument("--steps", type=at_least(1), default=30, help="timed decode steps (default: 30)")
    parser.add_argument("--report", type=new_file, help="write the figures to this JSON file too")
    return parser.parse_args(arguments)


def measure_ceilings() -> Ceilings:
    """Of the current device, in under a second."""
    source = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    target, one = torch.empty_like(source), torch.zeros(1, device="cuda")
    seconds = min(_device_ms(lambda: target.copy_(source)) for _ in range(10)) / 1000
    one.add_(1)  # loads the kernel, which must not happen in a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            one.add_(1)
    kernel_us = min(_device_ms(graph.replay) for _ in range(5))
    start = time.perf_counter()
    for _ in range(1000):
        one.add_(1)
    return Ceilings(2 * source.numel() / seconds, kernel_us, 1000 * (time.perf_counter() - start))


def _device_ms(launch: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def decode_plans(worker: Worker, batch: int, context: int, steps: int, vocab_size: int) -> Sequence[StepPlan]:
    """Prefills `batch` prompts, and plans decode steps after them over random tokens."""
    scheduler = Scheduler(
        num_pages=worker.num_pages(),
        page_size=EngineConfig.page_size,
        num_slots=batch + 1,
        max_num_seqs=batch,
        max_num_batched_tokens=2048,
        max_model_len=context + steps + 2,
        max_in_flight=1,
    )
    rng = np.random.default_rng(0)
    for number in range(batch):
        scheduler.add(number, rng.integers(3, vocab_size, size=context), steps + 1)
    plans: list[StepPlan] = []
    while (plan := scheduler.schedule()) is not None and len(plans) < steps:
        if plan.kind == "decode":
            plans.append(plan)
        else:
            worker.execute(plan)
        counts = (plan.sample_rows >= 0).astype(np.int32)
        tokens = rng.integers(3, vocab_size, size=int(counts.sum()))
        scheduler.commit(plan.step_id, plan.request_ids, tokens, counts, np.zeros(len(counts), dtype=np.bool_))
    return plans


def measure(model: Path, batch: int, options: argparse.Namespace, *, eager: bool) -> Figure:
    """One row of the table."""
    config = ModelConfig.from_file(model / "config.json")
    steps = options.steps + WARM_UP_STEPS
    engine = EngineConfig(
        device="cuda", max_num_seqs=batch, max_model_len=options.context + steps + 2, enforce_eager=eager
    )
    worker = Worker(model, engine.resolved(config, "cuda:0"))
    host, device, operations = [], [], None
    for number, plan in enumerate(decode_plans(worker, batch, options.context, steps, config.vocab_size)):
        torch.cuda.synchronize()
        if number == 0 and eager:
            with CountLaunches() as counted:
                worker.execute(plan)
            operations = counted.count
            continue
        launched: list[float] = []

        def launch(plan: StepPlan = plan, launched: list[float] = launched) -> None:
            start = time.perf_counter()
            worker.execute(plan)
            launched.append(1000 * (time.perf_counter() - start))

        elapsed = _device_ms(launch)
        if number >= WARM_UP_STEPS:
            host += launched
            device.append(elapsed)
    mode = "eager" if eager else "captured"
    return Figure(batch, mode, statistics.median(host), statistics.median(device), operations)


HEADER = "| batch | step | host, ms | device, ms | operations |\n|---:|---|---:|---:|---:|\n"


@told_in_a_line
def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(arguments)
    model = Path(tiny.__file__).parent if options.model == "tiny" else Path(options.model)
    origin = provenance.describe(
        "benchmarks.device_steps", list(arguments), provenance.device_name("cuda"), torch.get_num_threads()
    )
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    ceilings = measure_ceilings()
    sys.stdout.write(
        f"ceilings: copy {ceilings.copy / 1e12:.2f} TB/s, smallest kernel in a graph {ceilings.kernel_us:.2f} us, "
        f"eager launch {ceilings.launch_us:.1f} us\n{HEADER}"
    )
    figures = []
    for batch in options.batch:
        for eager in (True, False):
            figures.append(one := measure(model, batch, options, eager=eager))
            operations = "-" if one.operations is None else str(one.operations)
            cells = (one.batch, one.mode, f"{one.host_ms:.2f}", f"{one.device_ms:.2f}", operations)
            sys.stdout.write("| " + " | ".join(map(str, cells)) + " |\n")
            sys.stdout.flush()
    if options.report is not None:
        record = {
            "origin": origin,
            "ceilings": dataclasses.asdict(ceilings),
            "figures": [dataclasses.asdict(figure) for figure in figures],
        }
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
