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
        self._floor = 0  # characters of the first min_tokens tokens

    def push(self, token: int) -> StopMatch | None:
        """Takes the next token; the match that it completes, if it does."""
        self._tokens.append(token)
        if len(self._tokens) <= self._min_tokens:
            if len(self._tokens) == self._min_tokens:
                self._floor = self._seen = len(self._text())
            return None
        window = self._decode(self._tokens[self._start :])
        tail = window[len(self._context) :]
        complete = not window.endswith(_REPLACEMENT)
        visible = tail if complete else tail.rstrip(_REPLACEMENT)
        offset = self._settled - len(self._recent)
        candidate = _leftmost(self._recent + visible, self._stops, self._seen - offset)
        self._seen = max(self._seen, self._settled + len(visible))
        if (complete and tail) or len(self._tokens) - max(self._read, self._min_tokens) >= _PATIENCE:
            self._settle(tail)
        # A byte that makes a run of bytes invalid takes back settled text, so the whole text has the last word.
        return None if candidate is None else _leftmost(self._text(), self._stops, self._floor)

    def _text(self) -> str:
        """The whole text so far; an unfinished character at its end is none."""
        return self._decode(self._tokens).rstrip(_REPLACEMENT)

    def _settle(self, tail: str) -> None:
        """The text up to here will not change any more: move the window."""
        self._settled += len(tail)
        self._recent = (self._recent + tail)[-self._keep :] if self._keep else ""
        self._start, self._read = self._read, len(self._tokens)
        self._context = self._decode(self._tokens[self._start :])


def _leftmost(text: str, stops: Sequence[str], floor: int) -> StopMatch | None:
    """The first match that ends after `floor` characters; of those at one place, the stop string given first."""
    found: StopMatch | None = None
    for stop in stops:
        position = text.find(stop, max(0, floor - len(stop) + 1))
        if position >= 0 and (found is None or position < found.position):
            found = StopMatch(position, stop)
    return found
