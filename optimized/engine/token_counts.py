"""How often each token stands in a sequence: what penalties count.

Knows committed token ids, and adds those of a block under verification on the fly, so that a rejected draft leaves no
trace; knows nothing about penalties or logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class TokenCounts:
    """Counts of one sequence's committed tokens."""

    def __init__(self, prompt: Iterable[int]) -> None:
        """prompt: its token ids."""
        self._prompt = set(prompt)
        self._output: Counter[int] = Counter()
        self._only_prompt = self._prompt.copy()

    def commit(self, token: int) -> None:
        """Takes the output's next token."""
        self._output[token] += 1
        self._only_prompt.discard(token)

    def output(self, block: Sequence[int] = ()) -> tuple[Ids, Ids]:
        """The output's tokens and how often each stands there.

        Args:
            block: drafts before the row in question, counted with the output.
        Returns:
            ([n] ids, [n] counts), in no particular order.
        """
        counts: dict[int, int] = self._output
        if block:
            counts = dict(counts)
            for token in block:
                counts[token] = counts.get(token, 0) + 1
        size = len(counts)
        return np.fromiter(counts.keys(), np.int64, size), np.fromiter(counts.values(), np.int64, size)

    def seen(self, block: Sequence[int] = ()) -> Ids:
        """[n] the tokens of prompt, output and block, once each, in no particular order."""
        fresh = [token for token in dict.fromkeys(block) if token not in self._output]
        parts = [np.fromiter(self._output, np.int64, len(self._output)), np.array(fresh, dtype=np.int64)]
        rest = self._only_prompt.difference(fresh) if fresh else self._only_prompt
        return np.concatenate([*parts, np.fromiter(rest, np.int64, len(rest))])
