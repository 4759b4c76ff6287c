"""Where one sequence stands in its language: which tokens may follow, and when its text is complete.

Knows a compiled grammar and the ids that end the sequence; knows nothing about logits or text. A stop id is allowed
where the text so far is complete, and only there, whatever its text is: so a text that ends by an id is always in its
language.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
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

    def words_through(self, drafts: Sequence[int]) -> torch.Tensor:
        """Masks of a block's rows: row k is that of the token after the first k drafts. The state stays as it is.

        After a draft that the grammar refuses, or that ends the sequence, everything is allowed: no token is ever
        drawn there, since the draft's own mask rejects it, or the sequence has ended.

        Returns:
            [1 + L, ceil(V / 32)] int32; of no drafts the matcher's own, which a commit changes.
        Raises:
            GrammarError: the grammar fails or takes too long.
        """
        if not drafts:
            return self._masks
        began = time.thread_time()
        masks = torch.full((1 + len(drafts), self._masks.shape[1]), -1, dtype=torch.int32)
        masks[0] = self._masks[0]
        taken = 0
        try:
            for place, token in enumerate(drafts):
                if token in self._stop_ids or not self._allows(masks[place], token):
                    break
                self._accept(token)
                taken += 1
                self._fill(masks, place + 1)
            if taken:
                self._matcher.rollback(taken)
        except RuntimeError as error:
            raise GrammarError(f"the grammar failed: {error}") from error
        self._spend(time.thread_time() - began, taken)
        return masks

    def _follow(self, token_ids: Iterable[int]) -> None:
        began = time.thread_time()
        taken = 0
        try:
            for token in token_ids:
                if token in self._stop_ids and self.complete:
                    self._masks.zero_()
                    return
                self._accept(token)
                taken += 1
            self.complete = self._fill(self._masks, 0)
        except RuntimeError as error:
            raise GrammarError(f"the grammar failed: {error}") from error
        self._spend(time.thread_time() - began, taken)

    def _accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise GrammarError(f"the grammar refuses token {token}, which its mask allowed")

    def _spend(self, seconds: float, tokens: int) -> None:
        """Accounts for the time that some tokens took."""
        self._seconds += SECONDS_A_TOKEN * tokens - seconds
        if self._seconds < 0:
            raise GrammarError("following its grammar takes too much time")

    def _fill(self, masks: torch.Tensor, row: int) -> bool:
        """The mask of the present state, into a row of -1 or of an older mask; whether the text is complete."""
        masks[row] = -1
        self._matcher.fill_next_token_bitmask(masks, row)
        complete = bool(self._matcher.is_completed())
        for token in {*self._matcher.stop_token_ids, *self._stop_ids}:
            self._set(masks[row], token, complete and token in self._stop_ids)
        return complete

    @staticmethod
    def _allows(mask: torch.Tensor, token: int) -> bool:
        return bool(int(mask[token // 32]) >> (token % 32) & 1)

    @staticmethod
    def _set(mask: torch.Tensor, token: int, allowed: bool) -> None:
        word, bit = token // 32, token % 32
        value = 1 << bit if bit < 31 else -(1 << 31)
        if allowed:
            mask[word] |= value
        else:
            mask[word] &= ~value
