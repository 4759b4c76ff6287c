"""One sample of one request while it is generated: its tokens, their logprobs, and the rules by which a token ends it.

Knows token ids; knows nothing about text (output_processor.py), pages or logits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from optimized.engine.door import Request
from optimized.engine.stop_strings import StopMatch, StopWatcher
from optimized.engine.structured.matcher import GrammarError, Matcher
from optimized.engine.token_counts import TokenCounts
from reference.spec.outputs import FinishReason, Logprob


@dataclass(frozen=True)
class Proposal:
    """Drafts of what follows a sequence's newest token.

    survival: the probability that each, and every one before it, is kept. step_id: the step at whose end they were
    made.
    """

    tokens: tuple[int, ...]
    survival: tuple[float, ...]
    step_id: int


@dataclass
class Sequence:
    """One of a request's n samples.

    sequence_id: the scheduler's id. sample_index: 0 .. n - 1, part of the noise's counter.
    stop_ids: token ids that end it, and that may not be drawn before min_tokens. eos: the one of them that ends it
    without a stop_reason, None with ignore_eos.
    counts: of its tokens, None if no penalty needs them.
    prompt_logprobs: entries of the prompt tokens so far, None at the first; the request's first sample has them.
    matcher: where it stands in the language that its text must be in.
    pending_error: why it cannot go on, told when its next token is drawn.
    proposal: drafts of its next block, as far as the host knows; proposed_before: of the block before that. Both are
    forgotten where it is computed anew.
    verified_drafts, accepted_drafts: over all of its blocks.
    """

    sequence_id: int
    sample_index: int
    request: Request
    stop_ids: frozenset[int]
    eos: int | None
    watcher: StopWatcher | None = None
    counts: TokenCounts | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    matcher: Matcher | None = None
    pending_error: str | None = None
    proposal: Proposal | None = None
    proposed_before: Proposal | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    stop_match: StopMatch | None = None
    error: str | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    times_started: int = 0
    verified_drafts: int = 0
    accepted_drafts: int = 0

    def __post_init__(self) -> None:
        params = self.request.params
        if params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty:
            self.counts = TokenCounts(self.request.prompt_token_ids)
        if params.prompt_logprobs is not None and self.sample_index == 0:
            self.prompt_logprobs = [None]

    @property
    def position(self) -> int:
        """Index of the next token in prompt + output."""
        return len(self.request.prompt_token_ids) + len(self.token_ids)

    @property
    def last_length(self) -> int:
        """Most tokens of prompt + output."""
        return len(self.request.prompt_token_ids) + self.request.max_tokens

    @property
    def ended_by_id(self) -> bool:
        """Whether the last token is one of stop_ids, so that it is no part of the text."""
        return self.finish_reason == "stop" and self.stop_match is None and self.token_ids[-1] in self.stop_ids

    @property
    def drafts(self) -> tuple[int, ...]:
        """Drafts of its next block; none if there is no proposal."""
        return () if self.proposal is None else self.proposal.tokens

    def offer(self, proposal: Proposal) -> None:
        """Takes the drafts of its next block."""
        self.proposed_before, self.proposal = self.proposal, proposal

    def start(self) -> None:
        """A step gave it a fresh state slot: its first one, or one after a preemption."""
        self.times_started += 1
        self.proposal = self.proposed_before = None
        if self.first_scheduled_time is None:
            self.first_scheduled_time = time.monotonic()
        elif self.matcher is not None:
            try:
                self.matcher.restart(self.token_ids)
            except GrammarError as error:
                self.pending_error = str(error)

    def append(self, token: int) -> None:
        """Takes a sampled token and ends the sequence if the token's id or the length says so."""
        if self.first_token_time is None:
            self.first_token_time = time.monotonic()
        self.token_ids.append(token)
        if self.counts is not None:
            self.counts.commit(token)
        if token in self.stop_ids:
            self.finish("stop", None if token == self.eos else token)
        elif len(self.token_ids) >= self.request.max_tokens:
            self.finish("length")
        if self.matcher is not None:
            self._follow(self.matcher, token)

    def _follow(self, matcher: Matcher, token: int) -> None:
        """Takes a token through the language, and ends where nothing may follow."""
        try:
            matcher.commit(token)
        except GrammarError as error:
            self.fail(str(error))
            return
        if self.finish_reason is None and matcher.exhausted:
            if matcher.complete:
                self.finish("stop")
            else:
                self.fail("the grammar is at a dead end: no token may follow")

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Ends it; a later reason replaces an earlier one of the same step."""
        self.finish_reason = reason
        self.stop_reason = stop_reason
        self.finished_time = time.monotonic()

    def fail(self, message: str) -> None:
        """Ends it with an error."""
        self.error = f"request {self.request.request_id}: {message}"
        self.finish("error")
