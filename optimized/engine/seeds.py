"""Seeds for requests that bring none. Knows nothing about how a seed is used."""

from __future__ import annotations

import random
import secrets

SEED_BITS = 64


class SeedSource:
    """64-bit seeds: from the operating system, or one fixed sequence if the engine was given a seed."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = None if seed is None else random.Random(seed)

    def draw(self) -> int:
        """The next seed, 0 .. 2**64 - 1."""
        if self._generator is None:
            return secrets.randbits(SEED_BITS)
        return self._generator.getrandbits(SEED_BITS)
