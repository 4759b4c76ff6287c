"""One completion as it grows, token by token: its text, its logprobs, and when and why it ends.

Knows ids, text and stop rules; knows nothing about how a token was chosen, alone or in a block.

A completion ends, in this order of precedence, with a stop string, with the EOS (unless `ignore_eos`) or a stop token
id, or because `max_tokens` or the context is used up. The ids keep the token that ended it; the text leaves out a stop
token and everything from a stop string on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from reference import logprobs
from reference.spec.outputs import CompletionOutput, FinishReason
from reference.spec.sampling import SamplingParams

#: What a decoder prints for bytes that do not (yet) make a character.
INCOMPLETE = "\ufffd"


class Detokenizer(Protocol):
    """What generation asks of a tokenizer (`tokenizers.Tokenizer` has it)."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids."""


def stop_ids(params: SamplingParams, eos: int) -> frozenset[int]:
    """The ids that end a completion, and that are not drawn before `min_tokens`."""
    return frozenset(params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, eos))


class Completion:
    """The completion number `index` of a request, of at most `budget` tokens.

    output: what has been made so far, complete once `ended`. ends: ids that end it.
    """

    def __init__(
        self, tokenizer: Detokenizer | None, params: SamplingParams, eos: int, index: int, budget: int
    ) -> None:
        self.output = CompletionOutput(index=index, text="", token_ids=[])
        if params.logprobs is not None:
            self.output.logprobs = []
            self.output.cumulative_logprob = 0.0
        self.ends = stop_ids(params, eos)
        self._tokenizer = tokenizer
        self._params = params
        self._eos = eos
        self._budget = budget

    @property
    def ended(self) -> bool:
        """Whether it has a finish reason."""
        return self.output.finish_reason is not None

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        return self._budget - len(self.output.token_ids)

    def append(self, token: int, row: Tensor) -> None:
        """Take the next token.

        Args:
            row: [V], what its logprob and rank are told from.
        """
        self.output.token_ids.append(token)
        if self.output.logprobs is not None and self.output.cumulative_logprob is not None:
            entry = logprobs.report(row, token, self._params.logprobs or 0)
            self.output.logprobs.append(entry)
            self.output.cumulative_logprob += entry[token].logprob
        self._finish()

    def _finish(self) -> None:
        """Set the text, and the reasons if the newest token ends the completion. A character that is not complete
        at the end of the text matches no stop string yet."""
        ids, params = self.output.token_ids, self._params
        stopped_by_id = ids[-1] in self.ends
        self.output.text = self._text(ids[:-1] if stopped_by_id else ids)
        match = None
        if len(ids) > params.min_tokens:
            settled = self._text(ids[: params.min_tokens]).rstrip(INCOMPLETE)
            match = first_stop(self.output.text.rstrip(INCOMPLETE), params.stop, len(settled))
        if match is not None:
            self.output.text = self.output.text[: match[0]]
            self._end("stop", match[1])
        elif stopped_by_id:
            self._end("stop", None if ids[-1] == self._eos and not params.ignore_eos else ids[-1])
        elif self.room <= 0:
            self._end("length", None)

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        self.output.finish_reason = reason
        self.output.stop_reason = stop_reason

    def _text(self, ids: list[int]) -> str:
        return "" if self._tokenizer is None else self._tokenizer.decode(ids, skip_special_tokens=True)


def first_stop(text: str, stops: Sequence[str], settled: int) -> tuple[int, str] | None:
    """Where the text is cut, and by which stop string: the match that begins first, the earlier in the list on ties.

    Args:
        settled: length of the text in which no match may end (that of the first `min_tokens` tokens).
    """
    matches = []
    for place, stop in enumerate(stops):
        start = text.find(stop, max(0, settled - len(stop) + 1))
        if start >= 0:
            matches.append((start, place, stop))
    if not matches:
        return None
    start, _, stop = min(matches)
    return start, stop
