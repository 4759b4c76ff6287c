"""Stop strings: watches the text of a growing sequence of tokens and reports the leftmost match as soon as it is there.

Knows how to decode incrementally where characters, matches and byte runs are split over tokens; knows nothing about
requests or about why else a sequence ends.

The law: after token k the text is decode(tokens[:k]); the first k whose text holds a stop string ends the sequence,
and of the matches in that text the leftmost counts, of those at one place the one given first. The work a token costs
does not grow with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_REPLACEMENT = "\ufffd"
# An unfinished character shows as U+FFFD. So do bytes that will never be text: give up waiting after this many tokens.
_PATIENCE = 32


class StopMatch(NamedTuple):
    """position: characters of text before the match. stop: the stop string."""

    position: int
    stop: str


class StopWatcher:
    """The stop strings of one sequence.

    Only a window of the last tokens is decoded again for each new one: from `start` (so that the decoder sees the left
    context) over `read` (up to which the text is settled) to the end.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str], min_tokens: int = 0) -> None:
        """
        Args:
            decode: token ids to text.
            stops: non-empty strings.
            min_tokens: text of this many first tokens ends nothing; a match must end after it.
        """
        self._decode = decode
        self._stops = stops
        self._min_tokens = min_tokens
        self._keep = max(map(len, stops)) - 1
        self._tokens: list[int] = []
        self._start = 0
        self._read = 0
        self._context = ""  # text of tokens[start:read]
        self._settled = 0  # characters of settled text
        self._recent = ""  # its last `keep` characters
        self._seen = 0  # characters that were searched

    def push(self, token: int) -> StopMatch | None:
        """Takes the next token; the match that it completes, if it does."""
        self._tokens.append(token)
        window = self._decode(self._tokens[self._start :])
        tail = window[len(self._context) :]
        complete = not window.endswith(_REPLACEMENT)
        visible = tail if complete else tail.rstrip(_REPLACEMENT)
        match = self._search(self._recent + visible, self._settled - len(self._recent))
        self._seen = max(self._seen, self._settled + len(visible))
        if (complete and tail) or len(self._tokens) - self._read >= _PATIENCE:
            self._settle(tail)
        return match

    def _search(self, text: str, offset: int) -> StopMatch | None:
        """The leftmost match that ends in text not searched before. offset: position of text[0] in the whole text."""
        if len(self._tokens) <= self._min_tokens:
            return None
        found: StopMatch | None = None
        for stop in self._stops:
            position = text.find(stop, max(0, self._seen - offset - len(stop) + 1))
            if position >= 0 and (found is None or offset + position < found.position):
                found = StopMatch(offset + position, stop)
        return found

    def _settle(self, tail: str) -> None:
        """The text up to here will not change any more: move the window."""
        self._settled += len(tail)
        self._recent = (self._recent + tail)[-self._keep :] if self._keep else ""
        self._start, self._read = self._read, len(self._tokens)
        self._context = self._decode(self._tokens[self._start :])
