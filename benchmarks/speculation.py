"""What drafts are worth: acceptance by slot, tau and tokens per second of the engine, in one run.

    python -m benchmarks.speculation --nextn 5 --batch 1,8

Drafting off, and on with each rule (coupled, ratio) and each choice of lengths (fixed, scheduled by confidence). Knows
the public surface of the engine; knows nothing about how drafts are made. Accounting, for every system alike: prompts
are consecutive pieces of a text, EOS is ignored, a first untimed call is excluded, rounds alternate between systems,
medians count. t1 and tN are the seconds of whole `generate` calls for 1 and N new tokens a sequence; tokens/s = the
other N - 1 tokens of each sequence / (tN - t1), as they were returned; steps/s = decode steps / (tN - t1). "Full" is
what those steps would have given had every draft been verified and kept, an upper bound that is not a throughput. What
drafts are kept depends on the text. tau counts the token after the drafts; acceptance by slot is a share of all blocks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks import provenance
from benchmarks.arguments import at_least, new_file, sizes, temperatures, text_file, told_in_a_line
from optimized import LLM, SamplingParams
from optimized.engine.acceptance import Acceptance
from reference.spec.errors import EngineError

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Workload:
    """`batch` prompts of `context` tokens, `tokens` new ones each, drawn at `temperature`."""

    batch: int
    context: int
    tokens: int
    temperature: float


@dataclasses.dataclass(frozen=True)
class Figure:
    """A system's medians on a workload. tokens, steps, full: per second. The rest: see `Acceptance`."""

    workload: Workload
    system: str
    tokens: float
    steps: float
    full: float
    tau: float
    mean_length: float
    unconditional: list[float]
    confidence_error: list[float]
    rounds: list[float]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speculation", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--model", default="tiny", help="`tiny` or a checkpoint folder (default: tiny)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="of the engine (default: cpu)")
    parser.add_argument(
        "--text", type=text_file, default=provenance.ROOT / "README.md", help="prompts are pieces of it"
    )
    parser.add_argument("--nextn", type=at_least(1), default=5, help="drafts a block (default: 5)")
    parser.add_argument("--batch", type=sizes, default="1,8", help="batch sizes, comma separated (default: 1,8)")
    parser.add_argument(
        "--temperature", type=temperatures, default="0,1", help="temperatures, comma separated (default: 0,1)"
    )
    parser.add_argument("--context", type=at_least(1), default=128, help="prompt tokens (default: 128)")
    parser.add_argument("--tokens", type=at_least(2), default=96, help="new tokens per sequence (default: 96)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="timed rounds, the median counts (default: 3)")
    parser.add_argument("--confidence-table", help="file that calibrates the draft's confidences")
    parser.add_argument("--report", type=new_file, help="write the figures to this JSON file too")
    return parser.parse_args(arguments)


class System:
    """`LLM` with some options, and what it has generated last."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name = name
        self.nextn = options.get("nextn", 0)
        self.texts: list[list[int]] = []
        self._llm = LLM(model, **options)

    @property
    def acceptance(self) -> Acceptance:
        """What became of its drafts since it was made or forgot."""
        return self._llm.statistics.acceptance

    def forget(self) -> None:
        """Count drafts anew."""
        self._llm.statistics.acceptance = Acceptance(self.nextn)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        tokenizer = self._llm.get_tokenizer()
        if tokenizer is None:
            raise SystemExit("the checkpoint has no tokenizer, so that there is no text to prompt it with")
        return tokenizer.encode(text)

    def run(self, prompts: list[list[int]], tokens: int, temperature: float) -> tuple[float, int]:
        """Seconds and steps of one call."""
        params = [
            SamplingParams(temperature=temperature, seq_seed=number, ignore_eos=True, max_tokens=tokens)
            for number in range(len(prompts))
        ]
        counts = self._llm.statistics
        steps, counted, start = counts.steps, counts.generated_tokens, time.perf_counter()
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        took = time.perf_counter() - start
        self.texts = [output.outputs[0].token_ids for output in outputs]
        made = sum(map(len, self.texts))
        if made != tokens * len(prompts) or counts.generated_tokens - counted != made:
            error = outputs[0].outputs[0].error
            raise EngineError(f"{self.name}: {made} tokens, {counts.generated_tokens - counted} counted: {error}")
        return took, counts.steps - steps


def systems(options: argparse.Namespace) -> Iterator[System]:
    """Everything that is measured, without drafts first."""
    plain = {"device": options.device, "seed": 0, "max_num_seqs": max(options.batch)}
    yield System("off", options.model, plain)
    for rule in ("coupled", "ratio"):
        for lengths in ("fixed", "scheduled"):
            table = {} if options.confidence_table is None else {"confidence_table": options.confidence_table}
            drafts = {"nextn": options.nextn, "verification": rule, "verification_lengths": lengths}
            yield System(f"{rule}, {lengths}", options.model, {**plain, **drafts, **table})


def measure(measured: Sequence[System], workload: Workload, prompts: list[list[int]], rounds: int) -> list[Figure]:
    """An untimed call of each system, then rounds that alternate between them.

    Raises:
        RuntimeError: a text under the coupled rule is not that without drafts.
    """
    rates: dict[str, list[tuple[float, float]]] = {system.name: [] for system in measured}
    for system in measured:
        system.run(prompts, 2, workload.temperature)
        system.forget()
    for number in range(rounds):
        for system in measured:
            one, first_steps = system.run(prompts, 1, workload.temperature)
            whole, steps = system.run(prompts, workload.tokens, workload.temperature)
            seconds = whole - one
            tokens = workload.batch * (workload.tokens - 1) / seconds
            rates[system.name].append((tokens, (steps - first_steps) / seconds))
            if system.name.startswith("coupled") and system.texts != measured[0].texts:
                raise RuntimeError(f"{system.name}: another text than without drafts")
            logger.info("round %d, %s, %s: %.1f tokens/s", number + 1, workload, system.name, tokens)
    return [_figure(system, workload, rates[system.name]) for system in measured]


def _figure(system: System, workload: Workload, rates: list[tuple[float, float]]) -> Figure:
    steps = statistics.median(rate for _, rate in rates)
    drafts = system.acceptance
    return Figure(
        workload=workload,
        system=system.name,
        tokens=statistics.median(rate for rate, _ in rates),
        steps=steps,
        full=steps * workload.batch * (1 + system.nextn),
        tau=drafts.tau,
        mean_length=drafts.mean_length,
        unconditional=drafts.unconditional,
        confidence_error=drafts.confidence_error,
        rounds=[rate for rate, _ in rates],
    )


HEADER = (
    "| batch | temperature | drafts | tokens/s | against off | steps/s | full, tokens/s | tau | verified a block "
    "| kept, by slot | confidence error, by slot |\n"
    "|---:|---:|---|---:|---:|---:|---:|---:|---:|---|---|\n"
)


def row(figure: Figure, off: Figure) -> str:
    """A figure as a line of a Markdown table."""
    work = figure.workload
    cells = (
        f"{work.batch}",
        f"{work.temperature:g}",
        figure.system,
        f"{figure.tokens:.1f}",
        f"{figure.tokens / off.tokens:.2f}x",
        f"{figure.steps:.1f}",
        f"{figure.full:.1f}",
        f"{figure.tau:.2f}",
        f"{figure.mean_length:.2f}",
        " ".join(f"{share:.2f}" for share in figure.unconditional) or "-",
        " ".join(f"{error:.3f}" for error in figure.confidence_error) or "-",
    )
    return "| " + " | ".join(cells) + " |\n"


def pieces(ids: list[int], batch: int, context: int) -> list[list[int]]:
    """`batch` consecutive pieces of `context` ids, from the beginning again where the text ends."""
    if len(ids) < context:
        raise SystemExit(f"--text has {len(ids)} tokens; needed: at least --context = {context}")
    places = len(ids) // context
    return [ids[(n % places) * context : (n % places + 1) * context] for n in range(batch)]


@told_in_a_line
def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    options = parse(arguments)
    device = provenance.device_name(options.device)
    origin = provenance.describe("benchmarks.speculation", list(arguments), device, torch.get_num_threads())
    for name, value in origin.items():
        sys.stdout.write(f"{name}: {value}\n")
    measured, everything = list(systems(options)), []
    sys.stdout.write(HEADER)
    ids = measured[0].encode(options.text.read_text(encoding="utf-8"))
    for batch in options.batch:
        prompts = pieces(ids, batch, options.context)
        for temperature in options.temperature:
            workload = Workload(batch, options.context, options.tokens, temperature)
            figures = measure(measured, workload, prompts, options.rounds)
            everything += figures
            sys.stdout.write("".join(row(figure, figures[0]) for figure in figures))
            sys.stdout.flush()
    if options.report is not None:
        record = {"origin": origin, "figures": [dataclasses.asdict(figure) for figure in everything]}
        options.report.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(sys.argv[1:]))
