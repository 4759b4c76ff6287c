"""Where one sequence stands in its language: which tokens may follow, and when its text is complete.

Knows a compiled grammar and the ids that end the sequence; knows nothing about logits or text. A stop id is allowed
where the text so far is complete, and only there, whatever its text is: so a text that ends by an id is always in its
language.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import xgrammar

#: Processor time that following a grammar may take: some at once, and so much a token. Far beyond what any sane grammar
#: takes (0.6 ms a token at worst), it ends a request whose grammar takes more with every token.
FREE_SECONDS = 1.0
SECONDS_A_TOKEN = 0.005


class GrammarError(Exception):
    """A sequence cannot go on in its language; says why."""


class Matcher:
    """The state after the committed tokens of one sequence.

    words: [ceil(V / 32)] int32, bit i % 32 of word i // 32 says whether id i may follow.
    """

    def __init__(self, grammar: xgrammar.CompiledGrammar, stop_ids: Collection[int], vocab_size: int) -> None:
        """
        Args:
            stop_ids: ids that end the sequence; may be empty.
            vocab_size: V, columns of the logits.
        """
        self._grammar = grammar
        self._stop_ids = frozenset(token for token in stop_ids if token < vocab_size)
        self._masks = torch.zeros(1, -(-vocab_size // 32), dtype=torch.int32)
        self._seconds = FREE_SECONDS
        self.complete = False
        self.restart(())

    @property
    def words(self) -> torch.Tensor:
        """The mask of the next token."""
        return self._masks[0]

    @property
    def exhausted(self) -> bool:
        """Nothing may follow: the text is complete and no stop id says so, or it is a dead end."""
        return not bool(self._masks.any())

    def restart(self, token_ids: Iterable[int]) -> None:
        """From the language's beginning through these ids: a new request's, or those of one that was preempted.

        Raises:
            GrammarError: they do not lead through the language.
        """
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(self._grammar)
        self._follow(token_ids)

    def commit(self, token: int) -> None:
        """Takes the sequence's next token. After a stop id nothing more may come.

        Raises:
            GrammarError: the grammar does not take it, or takes too long.
        """
        self._follow([token])

    def _follow(self, token_ids: Iterable[int]) -> None:
        began = time.thread_time()
        try:
            for token in token_ids:
                self._seconds += SECONDS_A_TOKEN
                if token in self._stop_ids and self.complete:
                    self._masks.zero_()
                    return
                if not self._matcher.accept_token(token):
                    raise GrammarError(f"the grammar refuses token {token}, which its mask allowed")
            self._fill()
        except RuntimeError as error:
            raise GrammarError(f"the grammar failed: {error}") from error
        self._seconds -= time.thread_time() - began
        if self._seconds < 0:
            raise GrammarError("following its grammar takes too much time")

    def _fill(self) -> None:
        """The mask of the present state."""
        self._masks.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._masks)
        self.complete = bool(self._matcher.is_completed())
        for token in {*self._matcher.stop_token_ids, *self._stop_ids}:
            self._set(token, self.complete and token in self._stop_ids)

    def _set(self, token: int, allowed: bool) -> None:
        word, bit = token // 32, token % 32
        value = 1 << bit if bit < 31 else -(1 << 31)
        if allowed:
            self._masks[0, word] |= value
        else:
            self._masks[0, word] &= ~value
