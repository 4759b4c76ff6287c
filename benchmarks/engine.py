"""Tokens per second of the engine, of the reference and of a general implementation in one run.

    python -m benchmarks.engine --batch 1,8,64

Knows the public surface of each; knows nothing about how any works. The engine runs with asynchronous scheduling on and
off, and with the decoder's bounded replay off and compact. Accounting, all greedy, EOS ignored, random prompts of one
length, model loading and a first untimed call excluded: t1 and tN are the seconds of whole `generate` calls for 1 and N
new tokens a sequence. Prefill: prompt tokens / t1. Decode: the other N - 1 tokens of each sequence / (tN - t1). All:
output tokens / tN. Host: processor time of the calling thread a step, where the device's work is not on that thread.
Rounds alternate between all of them; medians are reported. The reference runs one sequence after another with a full
forward pass for each token, so its rate does not depend on the batch; a round of it is one sequence and few tokens.
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
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks import provenance
from benchmarks.arguments import at_least, new_file, sizes, told_in_a_line
from benchmarks.hf_baseline import Baseline, BaselineUnavailableError
from optimized import LLM, SamplingParams
from reference import checkpoint as reference_checkpoint
from reference import generate as reference_generate
from reference import tiny
from reference.model.transformer import ReferenceModel
from reference.spec.config import ModelConfig
from reference.spec.errors import EngineError

logger = logging.getLogger(__name__)

#: What the engine must reach against the reference at batch 8 and context 512.
TARGET_RATIO = 20.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """One row of the table: `batch` prompts of `context` tokens, `tokens` new ones each."""

    batch: int
    context: int
    tokens: int


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of one system. prefill, decode, overall: tokens per second. host_ms: milliseconds a step, or None."""

    prefill: float
    decode: float
    overall: float
    host_ms: float | None = None


@dataclasses.dataclass(frozen=True)
class Figure:
    """A system's rounds on a workload, and their medians."""

    workload: Workload
    system: str
    rounds: list[Round]
    prefill: float
    decode: float
    overall: float
    host_ms: float | None

    @classmethod
    def of(cls, workload: Workload, system: str, rounds: list[Round]) -> Figure:
        """The medians of rounds."""
        hosts = [one.host_ms for one in rounds if one.host_ms is not None]
        return cls(
            workload,
            system,
            rounds,
            statistics.median(one.prefill for one in rounds),
            statistics.median(one.decode for one in rounds),
            statistics.median(one.overall for one in rounds),
            statistics.median(hosts) if hosts else None,
        )


class System(Protocol):
    """Something that is measured."""

    name: str

    def warm_up(self, prompts: list[list[int]]) -> None:
        """An untimed call."""

    def round(self, prompts: list[list[int]], tokens: int) -> Round:
        """A timed round of `tokens` new tokens for each prompt."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--model", default="tiny", help="`tiny` or a checkpoint folder (default: tiny)")
    parser.add_argument("--batch", type=sizes, default="1,8,64", help="batch sizes, comma separated (default: 1,8,64)")
    parser.add_argument("--context", type=at_least(1), default=512, help="prompt tokens (default: 512)")
    parser.add_argument(
        "--tokens", type=at_least(2), default=64, help="new tokens per sequence of the engine (default: 64)"
    )
    parser.add_argument(
        "--reference-tokens",
        type=at_least(0),
        default=2,
        help="new tokens of the reference (default: 2; 0: no reference)",
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of the engine (default: cpu)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="timed rounds, the median counts (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random prompts (default: 0)")
    parser.add_argument("--report", type=new_file, help="write the figures to this JSON file too")
    return parser.parse_args(arguments)


def random_prompts(workload: Workload, vocab_size: int, seed: int) -> list[list[int]]:
    """`batch` lists of `context` ids, the special ones at the start of the vocabulary left out."""
    rng = np.random.default_rng(seed)
    return rng.integers(3, vocab_size, size=(workload.batch, workload.context)).tolist()


class Engine:
    """`LLM` with some options."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name = name
        self._own_thread = bool(options.get("async_scheduling", True)) or options.get("device") == "cuda"
        self._llm = LLM(model, **options)

    def warm_up(self, prompts: list[list[int]]) -> None:
        """See :class:`System`."""
        self._generate(prompts, 2)

    def round(self, prompts: list[list[int]], tokens: int) -> Round:
        """See :class:`System`."""
        one, _ = self._generate(prompts, 1)
        whole, host_ms = self._generate(prompts, tokens)
        return _round(prompts, tokens, one, whole, host_ms if self._own_thread else None)

    def _generate(self, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
        """Seconds of a call, and milliseconds of this thread's processor time a step."""
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        steps, host, start = self._llm.statistics.steps, time.thread_time(), time.perf_counter()
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        total, host = time.perf_counter() - start, time.thread_time() - host
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        if counts != [tokens] * len(prompts):
            error = outputs[0].outputs[0].error
            raise EngineError(f"the engine made {counts} tokens instead of {tokens} each: {error}")
        return total, 1000 * host / (self._llm.statistics.steps - steps)


class Reference:
    """`reference.generate`, one sequence."""

    name = "reference"

    def __init__(self, model: ReferenceModel, tokens: int) -> None:
        """
        Args:
            tokens: new tokens of a round, at least 2.
        """
        self._model = model
        self._tokens = tokens

    def warm_up(self, prompts: list[list[int]]) -> None:
        """See :class:`System`."""
        self._seconds(prompts[0], 1)

    def round(self, prompts: list[list[int]], tokens: int) -> Round:
        """See :class:`System`; the number of tokens is its own."""
        one, whole = self._seconds(prompts[0], 1), self._seconds(prompts[0], self._tokens)
        return _round(prompts[:1], self._tokens, one, whole)

    def _seconds(self, prompt: list[int], tokens: int) -> float:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        start = time.perf_counter()
        reference_generate.generate(self._model, None, prompt, params, 0)
        return time.perf_counter() - start


class HuggingFace:
    """A general eager implementation of like size, the whole batch in one call."""

    def __init__(self, baseline: Baseline) -> None:
        self.name = baseline.name
        self._baseline = baseline

    def warm_up(self, prompts: list[list[int]]) -> None:
        """See :class:`System`."""
        self._baseline.seconds(prompts, 2)

    def round(self, prompts: list[list[int]], tokens: int) -> Round:
        """See :class:`System`."""
        one, whole = self._baseline.seconds(prompts, 1), self._baseline.seconds(prompts, tokens)
        return _round(prompts, tokens, one, whole)


def _round(prompts: list[list[int]], tokens: int, one: float, whole: float, host_ms: float | None = None) -> Round:
    """The rates of calls for 1 and for `tokens` new tokens a prompt, that took `one` and `whole` seconds."""
    later = len(prompts) * (tokens - 1)
    decode = later / (whole - one) if whole > one else float("nan")
    return Round(sum(map(len, prompts)) / one, decode, len(prompts) * tokens / whole, host_ms)


def systems(options: argparse.Namespace, config: ModelConfig) -> list[System]:
    """Everything that is measured, the plain engine first."""
    keep = config.sliding_window + config.dspark_block_size + 1
    compact = {"yoco_mode": "compact", "yoco_keep_tokens": keep}
    found: list[System] = []
    for lag in (True, False):
        for replay in ({}, compact):
            name = f"engine, async {'on' if lag else 'off'}, replay {'compact' if replay else 'off'}"
            found.append(Engine(name, options.model, {"async_scheduling": lag, "device": options.device, **replay}))
    if options.reference_tokens:
        folder = Path(tiny.__file__).parent if options.model == "tiny" else Path(options.model)
        loaded = reference_checkpoint.load_checkpoint(folder)
        model = ReferenceModel(loaded.config, loaded.weights, loaded.token_map)
        found.append(Reference(model, options.reference_tokens))
    try:
        found.append(HuggingFace(Baseline.like(config, torch.device(options.device))))
    except BaselineUnavailableError as error:
        logger.warning("%s", error)
    return found


def measure(measured: Sequence[System], workload: Workload, rounds: int, seed: int, vocab_size: int) -> list[Figure]:
    """A first untimed call of each system, then rounds that alternate between them."""
    prompts = random_prompts(workload, vocab_size, seed)
    made: list[list[Round]] = [[] for _ in measured]
    for system in measured:
        system.warm_up(prompts)
    for number in range(rounds):
        for system, kept in zip(measured, made, strict=True):
            kept.append(system.round(prompts, workload.tokens))
            logger.info("round %d, batch %d, %s: %s", number + 1, workload.batch, system.name, kept[-1])
    return [Figure.of(workload, system.name, kept) for system, kept in zip(measured, made, strict=True)]


HEADER = (
    "| batch | context | new tokens | system | prefill, tokens/s | decode, tokens/s | all, output tokens/s "
    "| host, ms a step |\n"
    "|---:|---:|---:|---|---:|---:|---:|---:|\n"
)


def row(figure: Figure) -> str:
    """A figure as a line of a Markdown table."""
    work = figure.workload
    host = "-" if figure.host_ms is None else f"{figure.host_ms:.2f}"
    rates = (f"{figure.prefill:.1f}", f"{figure.decode:.1f}", f"{figure.overall:.1f}", host)
    return "| " + " | ".join(map(str, (work.batch, work.context, work.tokens, figure.system, *rates))) + " |\n"


def ratio_to_reference(figures: Sequence[Figure]) -> float | None:
    """Output tokens per second of the plain engine over those of the reference; None if it was not measured."""
    plain = [one.overall for one in figures if one.system == Reference.name]
    return figures[0].overall / plain[0] if plain else None


@told_in_a_line
def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status is 1 if the target was measured and missed."""
    options = parse(arguments)
    folder = Path(tiny.__file__).parent if options.model == "tiny" else Path(options.model)
    config = ModelConfig.from_file(folder / "config.json")
    device = provenance.device_name(options.device)
    origin = provenance.describe("benchmarks.engine", list(arguments), device, torch.get_num_threads())
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    sys.stdout.write(HEADER)
    measured, everything, status = systems(options, config), [], 0
    for batch in options.batch:
        workload = Workload(batch, options.context, options.tokens)
        figures = measure(measured, workload, options.rounds, options.seed, config.vocab_size)
        everything += figures
        sys.stdout.write("".join(map(row, figures)))
        ratio = ratio_to_reference(figures)
        if ratio is not None:
            sys.stdout.write(f"engine / reference at batch {batch}: {ratio:.1f}x\n")
            if (batch, options.context) == (8, 512):
                status = int(ratio < TARGET_RATIO)
                verdict = "missed" if status else "reached"
                sys.stdout.write(f"target {TARGET_RATIO:.0f}x at batch 8, context 512: {verdict}\n")
        sys.stdout.flush()
    if options.report is not None:
        record = {"origin": origin, "figures": [dataclasses.asdict(figure) for figure in everything]}
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return status


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(sys.argv[1:]))
