"""The bytes of each token, as the grammar compiler needs them.

Knows a tokenizer's file format: its vocabulary, its added tokens and how its decoder joins them; knows nothing about
grammars. A special token has no bytes: it leaves no trace in a text, so no language can ask for it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from reference.spec.errors import UnsupportedError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer_json: str) -> list[bytes]:
    """[tokens] what each id adds to a text; b"" for special tokens and ids without a token.

    Raises:
        UnsupportedError: a decoder whose text is not its tokens' bytes one after another.
    """
    described = json.loads(tokenizer_json)
    added = {one["id"]: one for one in described.get("added_tokens", ())}
    vocabulary = {index: token for token, index in described["model"]["vocab"].items()}
    vocabulary.update((index, one["content"]) for index, one in added.items())
    steps = _decoder_steps(described.get("decoder"))
    alphabet = _byte_level_alphabet()
    found = []
    for index in range(max(vocabulary) + 1):
        token = vocabulary.get(index, "")
        special = index in added and added[index]["special"]
        found.append(b"" if special else _bytes(token, steps, alphabet))
    return found


def without_control_characters(vocabulary: list[bytes]) -> list[bytes]:
    """The same with b"" for each token that holds a byte below 32: in JSON without line breaks there is none, but the
    compiler lets them into strings whose length or pattern is given (xgrammar 0.2.8)."""
    return [b"" if any(byte < 32 for byte in token) else token for token in vocabulary]


def _decoder_steps(decoder: dict[str, Any] | None) -> list[str]:
    """The decoder's steps that matter: "ByteLevel", "ByteFallback" and "Space" (▁ is a space)."""
    parts = [] if decoder is None else decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    steps = []
    for part in parts:
        if part["type"] in ("ByteLevel", "ByteFallback"):
            steps.append(part["type"])
        elif part["type"] == "Replace" and part["pattern"] == {"String": "▁"} and part["content"] == " ":
            steps.append("Space")
        elif part["type"] != "Fuse":
            raise UnsupportedError(f"structured output is not supported with the tokenizer's decoder {part['type']}")
    return steps


def _bytes(token: str, steps: list[str], alphabet: dict[str, int]) -> bytes:
    if "ByteLevel" in steps and all(char in alphabet for char in token):
        return bytes(alphabet[char] for char in token)
    byte = _BYTE.fullmatch(token)
    if "ByteFallback" in steps and byte is not None:
        return bytes([int(byte.group(1), 16)])
    return (token.replace("▁", " ") if "Space" in steps else token).encode("utf-8")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable characters that stand for the 256 bytes in byte-level vocabularies (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + n): byte for n, byte in enumerate(others)}
