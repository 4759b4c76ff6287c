"""Token ids of the corpus and the batches drawn from them: batch i is a function of the seed and of i alone.

Knows documents and ids. Knows nothing about models.

    python -m reference.tiny.data --corpus corpus.jsonl --out tokens.npz
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference.tiny import tokenizer as tiny_tokenizer

logger = logging.getLogger(__name__)

STARTS_AT_DOCUMENT = 0.3
"""Share of training windows that begin with a document's BOS; the others begin anywhere."""


@dataclass(frozen=True)
class TokenStream:
    """Documents one after another. ids: uint16 [N]; starts: int64 [documents], where each one's BOS stands."""

    ids: np.ndarray
    starts: np.ndarray

    def windows(self, rng: np.random.Generator, count: int, length: int) -> np.ndarray:
        """`count` windows of `length` ids: int64 [count, length]."""
        anywhere = rng.integers(0, len(self.ids) - length + 1, size=count)  # [count]
        fitting = self.starts[self.starts <= len(self.ids) - length]
        documents = rng.choice(fitting, size=count)  # [count]
        begin = np.where(rng.random(count) < STARTS_AT_DOCUMENT, documents, anywhere)  # [count]
        return self.ids[begin[:, None] + np.arange(length)].astype(np.int64)  # [count, length]

    def consecutive(self, length: int) -> np.ndarray:
        """The whole stream cut into windows that overlap by one id: int64 [n, length]."""
        begin = np.arange(0, len(self.ids) - length + 1, length - 1)  # [n]
        return self.ids[begin[:, None] + np.arange(length)].astype(np.int64)  # [n, length]


def encode_corpus(corpus: Path, tokenizer_json: Path) -> dict[str, TokenStream]:
    """The streams "train" and "held_out" of a corpus file; the order of documents is shuffled with a fixed seed."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_json))
    vocabulary = tokenizer.get_vocab()
    bos, eos, user, assistant, end_think = (
        vocabulary[token]
        for token in (
            tiny_tokenizer.BOS,
            tiny_tokenizer.EOS,
            tiny_tokenizer.USER,
            tiny_tokenizer.ASSISTANT,
            tiny_tokenizer.END_THINK,
        )
    )
    parts: dict[str, list[list[int]]] = {"train": [], "held_out": []}
    for line in corpus.read_text("utf-8").split("\n")[:-1]:
        document = json.loads(line)
        ids = tokenizer.encode(document["text"], add_special_tokens=False).ids
        if document["question"] is not None:
            question = tokenizer.encode(document["question"], add_special_tokens=False).ids
            ids = [user, *question, assistant, end_think, *ids]
        parts["held_out" if document["held_out"] else "train"].append([bos, *ids, eos])
    return {name: _stream(documents) for name, documents in parts.items()}


def _stream(documents: list[list[int]]) -> TokenStream:
    order = np.random.default_rng(0).permutation(len(documents))
    shuffled = [np.array(documents[index], dtype=np.uint16) for index in order]
    lengths = np.array([len(document) for document in shuffled], dtype=np.int64)
    return TokenStream(np.concatenate(shuffled), np.cumsum(lengths) - lengths)


def save_streams(path: Path, streams: dict[str, TokenStream]) -> None:
    """Write the streams to an npz file."""
    arrays: dict[str, np.ndarray] = {}
    for name, stream in streams.items():
        arrays |= {f"{name}_ids": stream.ids, f"{name}_starts": stream.starts}
    np.savez_compressed(path, allow_pickle=False, **arrays)


def load_streams(path: Path) -> dict[str, TokenStream]:
    """Read what `save_streams` wrote."""
    with np.load(path) as arrays:
        return {name: TokenStream(arrays[f"{name}_ids"], arrays[f"{name}_starts"]) for name in ("train", "held_out")}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.data", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="the jsonl file that reference.tiny.corpus wrote")
    parser.add_argument("--tokenizer", type=Path, default=Path(__file__).with_name("tokenizer.json"))
    parser.add_argument("--out", type=Path, required=True, help="the npz file to write")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    streams = encode_corpus(arguments.corpus, arguments.tokenizer)
    save_streams(arguments.out, streams)
    for name, stream in streams.items():
        logger.info("%s: %d ids, %d documents", name, len(stream.ids), len(stream.starts))


if __name__ == "__main__":
    main()
