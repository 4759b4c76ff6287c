"""What a request returns. Plain records: they know nothing about how the tokens came about."""

import dataclasses
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclasses.dataclass(frozen=True)
class Logprob:
    """One token's raw natural-log probability (a float32 value) and its rank, 1 for the most likely."""

    logprob: float
    rank: int


@dataclasses.dataclass
class CompletionOutput:
    """One of a prompt's n completions.

    logprobs: one dict a token, token id -> Logprob, holding the sampled token and the most likely ones.
    stop_reason: the stop string or stop token id that ended it; None for EOS, length, abort and error.
    error: what was wrong, when finish_reason is "error".
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclasses.dataclass
class RequestMetrics:
    """When things happened, in seconds of a monotonic clock; None for what did not happen.

    seq_seed: the seed that the request was sampled with, its own or one drawn for it. num_verified_drafts,
    num_accepted_drafts: over all blocks of its samples.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    seq_seed: int | None = None
    num_verified_drafts: int = 0
    num_accepted_drafts: int = 0


@dataclasses.dataclass
class RequestOutput:
    """All completions of one prompt, in the order of the prompts.

    prompt: the text, or None when the prompt was given as ids.
    prompt_logprobs: as CompletionOutput.logprobs, None at position 0; None altogether when not asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None

    @classmethod
    def refused(cls, request_id: str, prompt: str | None, prompt_token_ids: Any, error: str) -> "RequestOutput":
        """The output of a request that was never run: one completion with finish_reason "error"."""
        completion = CompletionOutput(index=0, text="", token_ids=[], finish_reason="error", error=error)
        ids = list(prompt_token_ids) if isinstance(prompt_token_ids, list | tuple) else []
        return cls(request_id, prompt, ids, [completion], finished=True)
