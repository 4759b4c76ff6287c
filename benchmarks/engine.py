"""Tokens per second of the engine and of the reference in one run: `python -m benchmarks.engine --batch 1,8,64`.

Knows the public surface of both; knows nothing about how either works. Accounting: output tokens divided by the seconds
of the whole `generate` call, prefill included, model loading and a first untimed call excluded; greedy, EOS ignored,
random prompts of one length. Rounds alternate between the two; medians are reported. The reference runs one sequence
after another with a full forward pass for each token, so its rate does not depend on the batch; a round of it is
therefore one sequence and few tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import provenance
from optimized import LLM, SamplingParams
from reference import checkpoint as reference_checkpoint
from reference import generate as reference_generate
from reference import tiny
from reference.model.transformer import ReferenceModel

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
class Figure:
    """Medians over the rounds, in output tokens per second, with all rounds beside them.

    decode: tokens after each sequence's first, over the time from the last first token to the end.
    """

    workload: Workload
    optimized: float
    decode: float
    reference: float
    ratio: float
    optimized_rounds: list[float]
    reference_rounds: list[float]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--model", default="tiny", help="`tiny` or a checkpoint folder (default: tiny)")
    parser.add_argument("--batch", default="1,8,64", help="batch sizes, comma separated (default: 1,8,64)")
    parser.add_argument("--context", type=int, default=512, help="prompt tokens (default: 512)")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens per sequence of the engine (default: 64)")
    parser.add_argument("--reference-tokens", type=int, default=2, help="new tokens of the reference (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, the median counts (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random prompts (default: 0)")
    parser.add_argument("--report", type=Path, help="write the figures to this JSON file too")
    return parser.parse_args(arguments)


def seconds(call: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def random_prompts(workload: Workload, vocab_size: int, seed: int) -> list[list[int]]:
    """`batch` lists of `context` ids, the special ones at the start of the vocabulary left out."""
    rng = np.random.default_rng(seed)
    return rng.integers(3, vocab_size, size=(workload.batch, workload.context)).tolist()


class Voices:
    """Both implementations of one checkpoint, loaded."""

    def __init__(self, model: str) -> None:
        folder = Path(tiny.__file__).parent if model == "tiny" else Path(model)
        checkpoint = reference_checkpoint.load_checkpoint(folder)
        self.config = checkpoint.config
        self.reference = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map)
        self.engine = LLM(model)

    def run_engine(self, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
        """Output tokens per second of the whole call, and of its decode part."""
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        start = time.perf_counter()
        outputs = self.engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        total = time.perf_counter() - start
        counts = [len(output.outputs[0].token_ids) for output in outputs]
        if counts != [tokens] * len(prompts):
            raise RuntimeError(
                f"the engine made {counts} tokens instead of {tokens} each: {outputs[0].outputs[0].error}"
            )
        metrics = [output.metrics for output in outputs if output.metrics is not None]
        first = max((m.first_token_time or 0.0 for m in metrics), default=0.0)
        last = max((m.finished_time or 0.0 for m in metrics), default=0.0)
        decode = len(prompts) * (tokens - 1) / (last - first) if last > first else float("nan")
        return len(prompts) * tokens / total, decode

    def run_reference(self, prompt: list[int], tokens: int) -> float:
        """Output tokens per second of one sequence."""
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
        took = seconds(lambda: reference_generate.generate(self.reference, None, prompt, params, 0))
        return tokens / took


def measure(voices: Voices, workload: Workload, reference_tokens: int, rounds: int, seed: int) -> Figure:
    """One row: a first untimed call of each, then alternating rounds."""
    prompts = random_prompts(workload, voices.config.vocab_size, seed)
    voices.run_engine(prompts, 2)
    voices.run_reference(prompts[0], 1)
    engine, reference = [], []
    for number in range(rounds):
        engine.append(voices.run_engine(prompts, workload.tokens))
        reference.append(voices.run_reference(prompts[0], reference_tokens))
        logger.info(
            "round %d of batch %d: %.1f and %.2f tokens/s", number + 1, workload.batch, engine[-1][0], reference[-1]
        )
    optimized = statistics.median(rate for rate, _ in engine)
    plain = statistics.median(reference)
    return Figure(
        workload=workload,
        optimized=optimized,
        decode=statistics.median(rate for _, rate in engine),
        reference=plain,
        ratio=optimized / plain,
        optimized_rounds=[rate for rate, _ in engine],
        reference_rounds=reference,
    )


HEADER = (
    "| batch | context | new tokens | optimized, tokens/s | its decode part | reference, tokens/s | ratio |\n"
    "|---:|---:|---:|---:|---:|---:|---:|\n"
)


def row(figure: Figure) -> str:
    """A figure as a line of a Markdown table."""
    work = figure.workload
    rates = (f"{figure.optimized:.1f}", f"{figure.decode:.1f}", f"{figure.reference:.2f}", f"{figure.ratio:.1f}x")
    return "| " + " | ".join(map(str, (work.batch, work.context, work.tokens, *rates))) + " |\n"


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status is 1 if the target was measured and missed."""
    options = parse(arguments)
    voices = Voices(options.model)
    origin = provenance.describe("benchmarks.engine", list(arguments), "cpu", torch.get_num_threads())
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    sys.stdout.write(HEADER)
    figures = []
    for batch in map(int, options.batch.split(",")):
        workload = Workload(batch, options.context, options.tokens)
        figures.append(measure(voices, workload, options.reference_tokens, options.rounds, options.seed))
        sys.stdout.write(row(figures[-1]))
        sys.stdout.flush()
    if options.report is not None:
        record = {"origin": origin, "figures": [dataclasses.asdict(figure) for figure in figures]}
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    judged = [f for f in figures if (f.workload.batch, f.workload.context) == (8, 512)]
    for f in judged:
        verdict = "reached" if f.ratio >= TARGET_RATIO else "missed"
        sys.stdout.write(f"target {TARGET_RATIO:.0f}x at batch 8, context 512: {verdict} ({f.ratio:.1f}x)\n")
    return int(any(f.ratio < TARGET_RATIO for f in judged))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(sys.argv[1:]))
