"""Training text of the model's own, for its draft: prompts for an engine, and the tokens that come back.

Knows jsonl files and token streams. Knows nothing about the engine: `generate` is any program that completes the
prompts' `prompt_token_ids` and writes one record a line, in order, with `outputs[0].token_ids`.

    python -m reference.tiny.regenerate prompts --tokens tokens.npz --count 480 --out prompts.jsonl
    counterpoint generate --model tiny --input prompts.jsonl --output answers.jsonl
    python -m reference.tiny.regenerate collect --prompts prompts.jsonl --answers answers.jsonl --out own.npz
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import numpy as np

from reference.tiny.data import TokenStream, load_streams, save_streams

logger = logging.getLogger(__name__)

TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Of every four prompts, what each is continued with: greedy text is what speculation meets most."""
HELD_OUT_SHARE = 0.05


def make_prompts(stream: TokenStream, count: int, prompt: int, length: int, seed: int) -> list[dict[str, object]]:
    """`count` requests that begin like a document or in the middle of one, and fill up to `length` tokens."""
    windows = stream.windows(np.random.default_rng(seed), count, prompt)  # [count, prompt]
    return [
        {
            "prompt_token_ids": ids,
            "max_tokens": length - prompt,
            "ignore_eos": True,
            "temperature": TEMPERATURES[index % len(TEMPERATURES)],
            "seq_seed": seed + index,
        }
        for index, ids in enumerate(windows.tolist())
    ]


def collect(
    prompts: list[dict[str, list[int]]], answers: list[dict[str, list[dict[str, list[int]]]]]
) -> list[list[int]]:
    """Prompt and answer of every record, as one sequence each.

    Raises:
        ValueError: the files differ in length, or a record holds no output.
    """
    if len(prompts) != len(answers):
        raise ValueError(f"{len(prompts)} prompts but {len(answers)} answers")
    empty = [index for index, answer in enumerate(answers) if not answer["outputs"]]
    if empty:
        raise ValueError(f"record {empty[0]} of the answers holds no output")
    return [
        [*prompt["prompt_token_ids"], *answer["outputs"][0]["token_ids"]]
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def to_streams(sequences: list[list[int]]) -> dict[str, TokenStream]:
    """The last few sequences held out, the others for training."""
    kept = max(1, round(len(sequences) * HELD_OUT_SHARE))
    parts = {"train": sequences[:-kept], "held_out": sequences[-kept:]}
    return {name: _stream(part) for name, part in parts.items()}


def _stream(sequences: list[list[int]]) -> TokenStream:
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    ids = np.concatenate([np.array(sequence, dtype=np.uint16) for sequence in sequences])
    return TokenStream(ids, np.cumsum(lengths) - lengths)


def read_jsonl(path: Path) -> list[dict]:
    """One object a line."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.regenerate", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prompts", help="write prompts from a token file")
    making.add_argument("--tokens", type=Path, required=True, help="the npz file that reference.tiny.data wrote")
    making.add_argument("--count", type=int, default=480)
    making.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    making.add_argument("--length", type=int, default=257, help="tokens of prompt and answer together")
    making.add_argument("--seed", type=int, default=1)
    collecting = commands.add_parser("collect", help="write a token file from prompts and answers")
    collecting.add_argument("--prompts", type=Path, required=True)
    collecting.add_argument("--answers", type=Path, required=True)
    for command in (making, collecting):
        command.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if arguments.command == "prompts":
        stream = load_streams(arguments.tokens)["train"]
        requests = make_prompts(stream, arguments.count, arguments.prompt, arguments.length, arguments.seed)
        arguments.out.write_text("".join(json.dumps(request) + "\n" for request in requests), "utf-8")
    else:
        sequences = collect(read_jsonl(arguments.prompts), read_jsonl(arguments.answers))
        streams = to_streams(sequences)
        save_streams(arguments.out, streams)
        logger.info("%d sequences, %d tokens", len(sequences), sum(len(stream.ids) for stream in streams.values()))


if __name__ == "__main__":
    main()
