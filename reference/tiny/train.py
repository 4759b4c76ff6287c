"""Train the bundled checkpoint: `backbone` from scratch, then `draft` on a frozen backbone. Resumable, CPU or GPU.

Knows command lines, schedules and files. Knows nothing about losses.

    python -m reference.tiny.train backbone --tokens tokens.npz --out run --steps 4000
    python -m reference.tiny.train draft --tokens tokens.npz --checkpoint run/checkpoint --out run_draft --steps 4000

`--out` receives the state to resume from (state.pt), the log (log.jsonl) and the checkpoint. `--minutes` bounds the
whole run by the clock instead of `--steps`. The quantised weights of the checkpoint are exactly those of the last step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from reference.checkpoint import load_checkpoint, save_checkpoint
from reference.spec.config import ModelConfig
from reference.spec.errors import CheckpointError
from reference.spec.token_map import checked_token_map
from reference.tiny import capture
from reference.tiny.data import TokenStream, load_streams
from reference.tiny.initial import initial_values
from reference.tiny.stages import BackboneStage, DraftStage, Stage

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
STAGES: dict[str, type[BackboneStage] | type[DraftStage]] = {"backbone": BackboneStage, "draft": DraftStage}
WARM_UP, COOL_DOWN = 0.02, 0.5
LOG_EVERY = 50
WAIT_EVERY = 8
"""Steps between waits for the device, so that the clock that drives the schedule stays near it."""


@dataclass
class Progress:
    """How far a run has come, by steps or by the clock.

    seconds: spent by earlier runs and this one. setup: of these, spent on compilation and capture, where the schedule
    stands still.
    """

    steps: int | None
    minutes: float | None
    step: int = 0
    seconds: float = 0.0
    setup: float = 0.0

    @property
    def share(self) -> float:
        """0 at the start, 1 at the end."""
        by_steps = self.step / self.steps if self.steps else 0.0
        by_clock = 0.0
        if self.minutes:
            by_clock = (self.seconds - self.setup) / max(60 * self.minutes - self.setup, 1.0)
        return min(1.0, max(by_steps, by_clock))

    @property
    def rate_factor(self) -> float:
        """Learning-rate factor: linear warm-up, constant, linear to zero."""
        return max(0.0, min(self.share / WARM_UP + 1e-3, 1.0, (1 - self.share) / COOL_DOWN))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.train", description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--tokens", type=Path, required=True, help="the npz file that reference.tiny.data wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; a state.pt there is resumed")
    parser.add_argument("--checkpoint", type=Path, help="start from these weights (default: random initial ones)")
    parser.add_argument("--config", type=Path, default=HERE / "config.json", help="without --checkpoint")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "tokenizer.json", help="without --checkpoint")
    parser.add_argument("--steps", type=int, help="steps of the whole run")
    parser.add_argument("--minutes", type=float, help="minutes of the whole run, resumed parts counted in")
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--graph", action="store_true", help="replay each step as one CUDA graph")
    parser.add_argument("--compile", action="store_true", help="fuse the sub-steps with torch.compile")
    parser.add_argument("--save-every", type=float, default=5.0, help="minutes between saves of the state")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.steps is None and arguments.minutes is None:
        parser.error("one of --steps and --minutes is needed")
    return arguments


def make_stage(arguments: argparse.Namespace) -> tuple[Stage, Path]:
    """The stage over its starting weights, and the tokenizer that its checkpoint carries.

    Raises:
        CheckpointError: the starting checkpoint has no tokenizer.
    """
    device = torch.device(arguments.device)
    if arguments.checkpoint is not None:
        loaded = load_checkpoint(arguments.checkpoint)
        config, values, tokenizer = loaded.config, loaded.weights, loaded.tokenizer_path
        if tokenizer is None:
            raise CheckpointError(f"{arguments.checkpoint}: has no tokenizer.json")
        if arguments.stage == "draft":
            fresh = initial_values(config, arguments.seed)
            values = {name: fresh[name] if name.startswith("mtp.") else value for name, value in values.items()}
    else:
        config, tokenizer = ModelConfig.from_file(arguments.config), arguments.tokenizer
        values = initial_values(config, arguments.seed)
    token_map = torch.from_numpy(checked_token_map(tokenizer, config))
    return STAGES[arguments.stage](config, values, token_map.to(device)), tokenizer


def save_state(path: Path, stage: Stage, progress: Progress) -> None:
    """Write the state beside its target and move it there."""
    partial = path.with_suffix(".partial")
    clock = {"step": progress.step, "seconds": progress.seconds, "setup": progress.setup}
    torch.save({**clock, "tensors": stage.state()}, partial)
    partial.replace(path)


def train(stage: Stage, arguments: argparse.Namespace, progress: Progress, streams: dict[str, TokenStream]) -> None:
    """Step until the progress is complete; logs every `LOG_EVERY` steps."""
    device = torch.device(arguments.device)
    step = capture.CapturedStep(stage.step, device) if arguments.graph else capture.PlainStep(stage.step, device)
    bar = tqdm(total=100.0, unit="%", bar_format="{l_bar}{bar}| {elapsed}<{remaining} {postfix}", mininterval=2.0)
    began, saved, first = time.monotonic() - progress.seconds, progress.seconds, True
    while progress.share < 1.0:
        rng = np.random.default_rng((arguments.seed, progress.step))
        batch = stage.batch(streams["train"], rng, arguments.batch, arguments.length)
        stage.optimizer.factor.fill_(progress.rate_factor)
        metrics = step(*batch)
        progress.step += 1
        if progress.step % WAIT_EVERY == 0 and device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.monotonic() - began - progress.seconds
        progress.seconds += elapsed
        if first and arguments.graph:
            progress.setup, first = progress.setup + elapsed, False
        if progress.step % LOG_EVERY == 0 or progress.share >= 1.0:
            values = dict(zip(stage.metrics, metrics.tolist(), strict=True))
            log(arguments.out, {"step": progress.step, "seconds": progress.seconds, **values})
            bar.set_postfix({"step": progress.step, **{name: f"{value:.3f}" for name, value in values.items()}})
        bar.update(100 * progress.share - bar.n)
        if progress.seconds - saved > 60 * arguments.save_every:
            save_state(arguments.out / "state.pt", stage, progress)
            saved = progress.seconds
    bar.close()


def log(folder: Path, record: dict[str, float]) -> None:
    """Append one line to the run's log."""
    with (folder / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def main() -> None:
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_float32_matmul_precision("high")  # TF32: every operand of a quantised product is exact in it
    capture.batch_experts()
    arguments.out.mkdir(parents=True, exist_ok=True)
    streams = load_streams(arguments.tokens)
    stage, tokenizer = make_stage(arguments)
    progress = Progress(arguments.steps, arguments.minutes)
    if (arguments.out / "state.pt").exists():
        state = torch.load(arguments.out / "state.pt", map_location=arguments.device)
        stage.load_state(state["tensors"])
        progress.step, progress.seconds, progress.setup = state["step"], state["seconds"], state["setup"]
        logger.info("resumed at step %d", progress.step)
    with capture.compiled_substeps() if arguments.compile else contextlib.nullcontext():
        train(stage, arguments, progress, streams)
    save_state(arguments.out / "state.pt", stage, progress)
    values = {name: value.cpu() for name, value in stage.model_values().items()}
    save_checkpoint(arguments.out / "checkpoint", stage.config, values, tokenizer)
    logger.info("step %d, checkpoint in %s", progress.step, arguments.out / "checkpoint")


if __name__ == "__main__":
    main()
