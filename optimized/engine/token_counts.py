"""How often each token stands in a sequence: what penalties count.

Knows committed token ids, and adds those of a block under verification on the fly, so that a rejected draft leaves no
trace; knows nothing about penalties or logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class TokenCounts:
    """Counts of one sequence's committed tokens."""

    def __init__(self, prompt: Iterable[int]) -> None:
        """prompt: its token ids."""
        self._place = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._ids = np.fromiter(self._place, np.int64, len(self._place))
        self._counts = np.zeros_like(self._ids)

    def commit(self, token: int) -> None:
        """Takes the output's next token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            room = np.zeros(8 + place // 2, dtype=np.int64)
            self._ids, self._counts = np.append(self._ids, room), np.append(self._counts, room)
        self._ids[place] = token
        self._counts[place] += 1

    def through(self, drafts: Sequence[int] = ()) -> tuple[Integers, Integers, int]:
        """The tokens of prompt, output and drafts, once each, and how often they stand in the output before each row of
        a block: before row k, the first k drafts are counted with the output.

        Args:
            drafts: L ids.
        Returns:
            ([m] ids, [1 + L, m] counts, how many of the ids, the first ones, are those of prompt and output).
        """
        known = len(self._place)
        fresh = list(dict.fromkeys(token for token in drafts if token not in self._place))
        counts = np.zeros((1 + len(drafts), known + len(fresh)), dtype=np.int64)
        counts[:, :known] = self._counts[:known]
        for row, token in enumerate(drafts, start=1):
            counts[row:, self._place[token] if token in self._place else known + fresh.index(token)] += 1
        return np.append(self._ids[:known], np.array(fresh, dtype=np.int64)), counts, known
