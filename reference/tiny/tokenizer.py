"""The bundled checkpoint's tokenizer: byte-fallback BPE with the special tokens of V4.1, trained on the corpus.

Knows text and ids. Knows nothing about models. Needs the `tokenizers` package (imported on use).

    python -m reference.tiny.tokenizer --corpus corpus.jsonl --out reference/tiny/tokenizer.json
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
SPECIAL_TOKENS = (BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, THINK, END_THINK, "｜DSML｜", "<｜latest_reminder｜>")
"""Ids 0, 1, 2, … in this order (V4.1 model specification §11); `SYSTEM` is the draft's noise token."""

BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
VOCAB_SIZE = 2048
ALPHABET_SIZE = 128

# A word with the blank before it, single digits, runs of punctuation, line ends, other blanks.
WORD_PATTERN = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+(?=[^\S\n]\S)|[^\S\n]+|\s+"


def assemble(pieces: list[str], merges: list[tuple[str, str]], byte_tokens: tuple[str, ...] = BYTE_TOKENS) -> Tokenizer:
    """A tokenizer of special tokens, byte tokens and `pieces`, in this order of ids.

    Args:
        pieces: learned tokens; every result of a merge must be among them.
        merges: BPE merges, first applied first.
        byte_tokens: what characters outside `pieces` fall back to; without them such characters vanish.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *byte_tokens, *pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=bool(byte_tokens)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the pieces and merges from `texts`; `vocab_size` counts special and byte tokens too."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(BYTE_TOKENS),
        limit_alphabet=ALPHABET_SIZE,
        max_token_length=16,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    return assemble(pieces, [tuple(merge) for merge in learned["merges"]])


def random_tokenizer(vocab_size: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` ids for checkpoints of random weights: bytes, letters and made-up pieces.

    Vocabularies too small for 256 byte tokens get letters only.

    Raises:
        ValueError: the vocabulary does not hold the special tokens.
    """
    room = vocab_size - len(SPECIAL_TOKENS)
    if room < 0:
        raise ValueError(f"vocab_size {vocab_size}: must hold the {len(SPECIAL_TOKENS)} special tokens")
    byte_tokens = BYTE_TOKENS if room >= len(BYTE_TOKENS) else ()
    room -= len(byte_tokens)
    letters = "etaoinshrdlucmfwypvbgkjqxz ETAOINSHRDLUCMFWYPVBGKJQXZ0123456789.,;:!?'-()\n"[:room]
    pieces, merges = list(letters), []
    for first in letters:
        for second in letters:
            if len(pieces) < room and (first.isalpha() or first == " ") and second.isalpha():
                pieces.append(first + second)
                merges.append((first, second))
    pieces += [f"<unused{index}>" for index in range(room - len(pieces))]
    return assemble(pieces, merges, byte_tokens)


def training_texts(corpus: Path) -> Iterator[str]:
    """The texts of the training documents of a corpus file."""
    with corpus.open(encoding="utf-8") as file:
        for line in file:
            document = json.loads(line)
            if not document["held_out"] and document["question"] is None:
                yield document["text"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reference.tiny.tokenizer", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="the jsonl file that reference.tiny.corpus wrote")
    parser.add_argument("--out", type=Path, required=True, help="the tokenizer.json to write")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    tokenizer = train_tokenizer(training_texts(arguments.corpus))
    tokenizer.save(str(arguments.out))
    logger.info("%d ids written to %s", tokenizer.get_vocab_size(), arguments.out)


if __name__ == "__main__":
    main()
