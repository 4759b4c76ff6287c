"""The simulated model: the next token is a hash of all that a request can see, so a wrong page becomes a wrong token.

Knows tokens, positions and the window; knows nothing about pages, slots or schedulers. Alone, it gives the text that a
request has when nothing else runs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

VOCABULARY = 61

STOP_TOKEN = 7

LONGEST = 512

POISON = 1 << 60

_MASK = (1 << 64) - 1


def _entries() -> list[list[int]]:
    source = random.Random("the key-value entry of a token at a position")
    return [[source.getrandbits(48) | 1 for _ in range(LONGEST)] for _ in range(VOCABULARY)]


ENTRIES = _entries()
"""[VOCABULARY][LONGEST] what a token at a position leaves in its page and in the ring of its slot."""


def next_token(pages_sum: int, ring_sum: int, replay_start: int) -> int:
    """The token that follows, from the entries seen in pages, those seen in the ring, and the replay start."""
    mixed = (pages_sum * 0x9E3779B97F4A7C15 + ring_sum * 0xC2B2AE3D27D4EB4F + replay_start * 0x165667B19E3779F9) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return (mixed >> 33) % VOCABULARY


@dataclass
class LoneRun:
    """The tokens of one request when nothing else runs.

    prompt: at least one token; window: how many positions the ring shows; replay_start: as given to the scheduler.
    """

    prompt: list[int]
    window: int
    replay_start: int
    tokens: list[int] = field(init=False)
    _entries: list[int] = field(init=False)
    _sum: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self._entries = [ENTRIES[token][position] for position, token in enumerate(self.tokens)]
        self._sum = sum(self._entries)

    def token(self, position: int) -> int:
        """The token at a position, of the prompt or of what follows it."""
        while len(self.tokens) <= position:
            new = next_token(self._sum, sum(self._entries[-self.window :]), self.replay_start)
            entry = ENTRIES[new][len(self.tokens)]
            self.tokens.append(new)
            self._entries.append(entry)
            self._sum += entry
        return self.tokens[position]

    def output(self, limit: int) -> list[int]:
        """All it says: up to the stop token, or to `limit` tokens with the prompt."""
        said = []
        for position in range(len(self.prompt), limit):
            said.append(self.token(position))
            if said[-1] == STOP_TOKEN:
                break
        return said
