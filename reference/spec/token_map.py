"""The Engram token map: token ids that read alike share one compressed id. It knows a tokenizer file, no model.

Source: V4.1 model specification §6.1; DeepSeek-V4.1 inference/engram.py. `tokenizers` is imported when it is needed.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reference.spec import json_file
from reference.spec.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

    from reference.spec.config import ModelConfig

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONE_SPACE = "\ue000"


def _normalizer() -> "Normalizer":
    """N of the specification: fold width, accents, case and runs of blanks, but keep a lone blank."""
    from tokenizers import Regex, normalizers

    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(LONE_SPACE, " "),
        ]
    )


def engram_token_map(tokenizer_json: str | Path, vocab_size: int) -> np.ndarray:
    """Compressed id of every token id that the tokenizer defines.

    Args:
        tokenizer_json: the tokenizer.json file.
        vocab_size: the model's vocabulary; a tokenizer with more ids is refused.

    Returns:
        int64 [len(tokenizer)], ids in order of first appearance. Ids from len(tokenizer) up have no compressed id:
        hashing one is an error of the caller.

    Raises:
        CheckpointError: the file cannot be read as a tokenizer, has a hole in its ids or more of them than vocab_size.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(json_file.read_bytes(Path(tokenizer_json)).decode("utf-8"))
    except Exception as error:  # the Rust library raises bare Exception
        raise CheckpointError(f"{tokenizer_json}: cannot be read as a tokenizer: {error}") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocab_size:
        raise CheckpointError(f"{tokenizer_json}: {size} tokens, more than vocab_size = {vocab_size}")
    normalizer = _normalizer()
    compressed: dict[str, int] = {}
    token_map = np.empty(size, dtype=np.int64)  # [len(tokenizer)]
    for token in range(size):
        raw = tokenizer.id_to_token(token)
        if raw is None:
            raise CheckpointError(f"{tokenizer_json}: token id {token} is not defined, though {size} tokens are")
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = raw if REPLACEMENT in text else normalizer.normalize_str(text) or text
        token_map[token] = compressed.setdefault(key, len(compressed))
    return token_map


def checked_token_map(tokenizer_json: str | Path, config: "ModelConfig") -> np.ndarray:
    """The map of a configuration with Engram layers, checked against its compressed vocabulary size.

    Raises:
        CheckpointError: as `engram_token_map`, or another number of compressed ids than
            engram_compressed_vocab_size (the hash multipliers depend on it), or the pad token has no compressed id.
    """
    token_map = engram_token_map(tokenizer_json, config.vocab_size)
    distinct = int(token_map.max(initial=-1)) + 1
    if distinct != config.engram_compressed_vocab_size:
        raise CheckpointError(
            f"{tokenizer_json}: {distinct} compressed ids, but engram_compressed_vocab_size = "
            f"{config.engram_compressed_vocab_size}: another tokenizer, or another version of its normalizers"
        )
    if config.engram_pad_token_id >= len(token_map):
        pad = config.engram_pad_token_id
        raise CheckpointError(f"{tokenizer_json}: engram_pad_token_id = {pad}, but it has {len(token_map)} tokens")
    return token_map
