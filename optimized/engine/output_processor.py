"""From finished token sequences to RequestOutputs: text, stop strings, and the gathering of a request's n samples.

Knows requests, sequences and the tokenizer; knows nothing about the scheduler or the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from optimized.engine.door import Request
from optimized.engine.sequence import Sequence
from optimized.engine.stop_strings import StopWatcher
from optimized.tokenizer import Tokenizer
from reference.spec.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


@dataclass
class _Opened:
    """A request whose output is not complete. unfinished: its sequences that close has not seen."""

    sequences: list[Sequence]
    unfinished: int
    arrival: float


class OutputProcessor:
    """Makes the sequences of requests, watches their text, and builds a request's output when all its samples ended."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._eos = eos_token_id
        self._open: dict[str, _Opened] = {}

    def open(self, request: Request, first_sequence_id: int) -> list[Sequence]:
        """The n sequences of a new request; their ids count from `first_sequence_id`."""
        params = request.params
        eos = None if params.ignore_eos else self._eos
        stop_ids = frozenset(params.stop_token_ids if eos is None else (*params.stop_token_ids, eos))
        sequences = [
            Sequence(first_sequence_id + index, index, request, stop_ids, eos, self._watcher(request))
            for index in range(params.n)
        ]
        self._open[request.request_id] = _Opened(sequences, len(sequences), time.monotonic())
        return sequences

    def _watcher(self, request: Request) -> StopWatcher | None:
        if not request.params.stop or self._tokenizer is None:
            return None
        return StopWatcher(self._tokenizer.decode, request.params.stop, request.params.min_tokens)

    def take(self, sequence: Sequence) -> None:
        """Looks at the newest token's text: a stop string ends the sequence, whatever else did in the same step."""
        if sequence.watcher is None or sequence.finish_reason == "error" or sequence.ended_by_id:
            return
        match = sequence.watcher.push(sequence.token_ids[-1])
        if match is not None:
            sequence.stop_match = match
            sequence.finish("stop", match.stop)

    def close(self, sequence: Sequence) -> RequestOutput | None:
        """A sequence has ended: the output of its request if it was the last one."""
        request = sequence.request
        opened = self._open[request.request_id]
        opened.unfinished -= 1
        if opened.unfinished:
            return None
        del self._open[request.request_id]
        completions = [self._completion(one) for one in opened.sequences]
        return RequestOutput(
            request.request_id,
            request.prompt,
            request.prompt_token_ids,
            completions,
            finished=True,
            prompt_logprobs=_of_prompt(opened.sequences[0]),
            metrics=_metrics(opened.arrival, request, opened.sequences),
        )

    def unfinished(self, request_id: str) -> list[Sequence]:
        """The sequences of a request that have not ended; none if it has no open output."""
        opened = self._open.get(request_id)
        return [] if opened is None else [one for one in opened.sequences if one.finish_reason is None]

    def drop_all(self) -> None:
        """Forgets every request that has no output yet."""
        self._open.clear()

    def _completion(self, sequence: Sequence) -> CompletionOutput:
        wanted = sequence.request.params.logprobs is not None
        return CompletionOutput(
            index=sequence.sample_index,
            text=self._text(sequence),
            token_ids=sequence.token_ids,
            cumulative_logprob=sequence.cumulative_logprob if wanted else None,
            logprobs=sequence.logprobs if wanted else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            error=sequence.error,
        )

    def _text(self, sequence: Sequence) -> str:
        if self._tokenizer is None:
            return ""
        visible = sequence.token_ids[:-1] if sequence.ended_by_id else sequence.token_ids
        text = self._tokenizer.decode(visible)
        return text if sequence.stop_match is None else text[: sequence.stop_match.position]


def _of_prompt(first: Sequence) -> list[dict[int, Logprob] | None] | None:
    """The entries of all prompt tokens; None if they were not asked for, or an error came before."""
    told = first.prompt_logprobs
    complete = told is not None and first.pending_error is None and len(told) == len(first.request.prompt_token_ids)
    return told if complete else None


def _metrics(arrival: float, request: Request, sequences: SequenceOf[Sequence]) -> RequestMetrics:
    """Times of a request: the earliest of its samples for starts, the latest for the end."""
    return RequestMetrics(
        arrival_time=arrival,
        first_scheduled_time=_earliest([one.first_scheduled_time for one in sequences]),
        first_token_time=_earliest([one.first_token_time for one in sequences]),
        finished_time=max(one.finished_time or arrival for one in sequences),
        num_preemptions=sum(max(one.times_started - 1, 0) for one in sequences),
        seq_seed=request.seed,
        num_verified_drafts=sum(one.verified_drafts for one in sequences),
        num_accepted_drafts=sum(one.accepted_drafts for one in sequences),
    )


def _earliest(times: SequenceOf[float | None]) -> float | None:
    return min((one for one in times if one is not None), default=None)
