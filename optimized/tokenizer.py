"""Text to token ids and back, by the tokenizer.json of a checkpoint folder.

Knows the `tokenizers` package and the one switch of tokenizer_config.json that changes ids (add_bos_token); knows
nothing about requests, stop strings or streaming.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reference.spec import json_file
from reference.spec.errors import CheckpointError, shown

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


class Tokenizer:
    """A checkpoint's tokenizer.

    encode adds what the file's own post-processor adds, and the BOS token if tokenizer_config.json says
    `"add_bos_token": true` and it is not there yet; truncation and padding that the file asks for are left out, a
    prompt is never cut silently. decode leaves special tokens out.
    """

    def __init__(self, backend: RustTokenizer, bos_token_id: int | None = None) -> None:
        """
        Args:
            backend: the loaded tokenizer.
            bos_token_id: put before every text, None: nothing is.
        """
        self._backend = backend
        self._bos_token_id = bos_token_id

    @classmethod
    def from_folder(cls, folder: Path, bos_token_id: int) -> Tokenizer | None:
        """The tokenizer of a checkpoint folder, None if it has no tokenizer.json.

        Raises:
            CheckpointError: a file that cannot be read.
        """
        path = folder / TOKENIZER_FILE
        if not os.path.lexists(path):
            return None
        from tokenizers import Tokenizer as RustTokenizer

        try:
            backend = RustTokenizer.from_str(json_file.read_bytes(path).decode("utf-8"))
            backend.no_truncation()
            backend.no_padding()
            backend.decode(backend.encode("a b").ids)  # a post-processor without its token fails here, not in a request
        except BaseException as error:  # a panic of the Rust library is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise CheckpointError(f"{path}: not a tokenizer: {error}") from error
        return cls(backend, bos_token_id if _adds_bos(folder / SETTINGS_FILE) else None)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids = list(self._backend.encode(text).ids)
        if self._bos_token_id is not None and ids[:1] != [self._bos_token_id]:
            ids.insert(0, self._bos_token_id)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of some ids; bytes that are no UTF-8 become U+FFFD, ids without a token become nothing."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return self._backend.to_str()

    @property
    def vocab_size(self) -> int:
        """Ids that have a token, special ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)


def _adds_bos(path: Path) -> bool:
    """Whether a tokenizer_config.json asks for a BOS token before each text; a missing file does not."""
    if not os.path.lexists(path):
        return False
    try:
        value = json_file.read_object(path).get("add_bos_token", False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, bool):
        raise CheckpointError(f"{path}: add_bos_token: got {shown(value)}; accepted: true or false")
    return value
