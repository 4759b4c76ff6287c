"""Measure a checkpoint: held-out loss, draft acceptance at temperature 0 and 1, calibration of the confidence.

Knows files and the reference model. Knows nothing about training.

    python -m reference.tiny.evaluate --tokens tokens.npz --out evaluation.json

The loss and the text come from the float32 mode of the reference; `exact_loss` repeats a few windows in its default,
float64 between the named rounding boundaries.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from reference.checkpoint import load_checkpoint
from reference.model import ReferenceModel
from reference.numerics import Numerics
from reference.tiny import acceptance, losses
from reference.tiny.data import TokenStream, load_streams

logger = logging.getLogger(__name__)


@torch.no_grad()
def held_out_loss(model: ReferenceModel, windows: np.ndarray) -> float:
    """Mean loss in nats a token over windows int64 [n, T + 1]."""
    device = model.frequencies[0].device
    rows = [torch.from_numpy(window).to(device) for window in windows]
    return sum(float(losses.cross_entropy(model.forward(row[:-1]), row[1:])) for row in tqdm(rows)) / len(rows)


def spread(windows: np.ndarray, count: int) -> np.ndarray:
    """`count` windows at even distances."""
    return windows[np.linspace(0, len(windows) - 1, min(count, len(windows))).astype(int)]


def prompts(stream: TokenStream, count: int, length: int) -> torch.Tensor:
    """The first `length` ids of `count` documents that are long enough: int64 [count, length]."""
    ends = np.append(stream.starts[1:], len(stream.ids))
    fitting = stream.starts[ends - stream.starts >= 2 * length]
    begin = spread(fitting, count)
    return torch.from_numpy(stream.ids[begin[:, None] + np.arange(length)].astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=Path, required=True, help="the npz file that reference.tiny.data wrote")
    parser.add_argument("--checkpoint", type=Path, default=Path(__file__).parent)
    parser.add_argument("--out", type=Path, required=True, help="the json file to write")
    parser.add_argument("--windows", type=int, default=64, help="held-out windows of 1024 tokens")
    parser.add_argument("--exact-windows", type=int, default=2, help="of them, windows repeated in float64")
    parser.add_argument("--long-windows", type=int, default=4, help="held-out windows of 4096 tokens")
    parser.add_argument("--requests", type=int, default=16, help="held-out prompts continued at each temperature")
    parser.add_argument("--prompt", type=int, default=64, help="tokens a prompt")
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    device = torch.device(arguments.device)
    loaded = load_checkpoint(arguments.checkpoint)
    weights = {name: value.to(device) for name, value in loaded.weights.items()}
    model = ReferenceModel(loaded.config, weights, loaded.token_map, Numerics(compute_dtype=torch.float32))
    exact = ReferenceModel(loaded.config, weights, loaded.token_map)
    stream = load_streams(arguments.tokens)["held_out"]
    windows = spread(stream.consecutive(1025), arguments.windows)
    few = spread(windows, arguments.exact_windows)
    results = {
        "loss": held_out_loss(model, windows),
        "exact_loss": held_out_loss(exact, few),
        "loss_of_the_same_windows": held_out_loss(model, few),
        "loss_at_4096": held_out_loss(model, spread(stream.consecutive(4097), arguments.long_windows)),
    }
    logger.info("%s", results)
    start = prompts(stream, arguments.requests, arguments.prompt).to(device)
    total = arguments.prompt + arguments.new_tokens
    measured = []
    for temperature in (0.0, 1.0):
        gumbel = acceptance.noise((len(start), total, loaded.config.vocab_size), int(temperature), device)
        ids = acceptance.continue_text(model, start, arguments.new_tokens, temperature, gumbel)
        measured.append(acceptance.measure(model, ids, arguments.prompt, temperature, gumbel))
        logger.info("%s", measured[-1])
    record = {**results, "acceptance": [dataclasses.asdict(one) for one in measured]}
    arguments.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
