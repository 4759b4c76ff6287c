"""Generation for one prompt, as plain as can be: a full forward pass over the whole sequence for every new token.

Knows when a completion ends and what its text is; knows nothing about batches, caches or how the logits come about.

A completion ends, in this order of precedence, with a stop string, with the EOS (unless `ignore_eos`) or a stop token
id, or because `max_tokens` or the context is used up. The ids keep the token that ended it; the text leaves out a stop
token and everything from a stop string on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from reference import sampler
from reference.spec.config import ModelConfig
from reference.spec.errors import RequestError
from reference.spec.outputs import CompletionOutput, FinishReason, Logprob, RequestOutput
from reference.spec.sampling import SamplingParams

#: What a decoder prints for bytes that do not (yet) make a character.
INCOMPLETE = "\ufffd"


class LanguageModel(Protocol):
    """What generation asks of a model."""

    config: ModelConfig

    def forward(self, tokens: Tensor, replay_start: int = 0) -> Tensor:
        """Logits [T, V] of the token ids [T] int64."""


class Detokenizer(Protocol):
    """What generation asks of a tokenizer (`tokenizers.Tokenizer` has it)."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of the ids."""


def generate(
    model: LanguageModel,
    tokenizer: Detokenizer | None,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    request_seed: int,
    *,
    request_id: str = "0",
    max_model_len: int | None = None,
    replay_start: int = 0,
) -> RequestOutput:
    """All n completions of one prompt.

    Args:
        tokenizer: makes the text; without one every text is empty and stop strings are refused.
        prompt_ids: at least one id of the vocabulary.
        request_seed: unsigned 64-bit, used where `params.seq_seed` is None.
        max_model_len: the most tokens of prompt and output together; the model's own limit by default.
        replay_start: see the model; fixed for the whole request.

    Raises:
        RequestError: an empty or too long prompt, an id outside the vocabulary, stop strings without a tokenizer, or
            logits from which nothing can be drawn.
    """
    prompt = list(prompt_ids)
    limit = max_model_len or model.config.max_position_embeddings
    _check_prompt(request_id, prompt, model.config.vocab_size, limit)
    if params.stop and tokenizer is None:
        raise RequestError(f"request {request_id}: stop = {list(params.stop)!r} needs a tokenizer")
    seed = request_seed if params.seq_seed is None else params.seq_seed
    outputs = [
        _complete(model, tokenizer, prompt, params, seed, index, limit - len(prompt), replay_start)
        for index in range(params.n)
    ]
    return RequestOutput(request_id, None, prompt, outputs, finished=True)


def _check_prompt(request_id: str, prompt: list[int], vocab_size: int, limit: int) -> None:
    if not prompt:
        raise RequestError(f"request {request_id}: the prompt is empty; it must hold at least one token id")
    for place, token in enumerate(prompt):
        if type(token) is not int or not 0 <= token < vocab_size:
            message = f"prompt id {token!r} at {place} must be an int in 0..{vocab_size - 1}"
            raise RequestError(f"request {request_id}: {message}")
    if len(prompt) >= limit:
        message = f"the prompt has {len(prompt)} tokens; at most {limit - 1} leave room for one more"
        raise RequestError(f"request {request_id}: {message}")


def _complete(
    model: LanguageModel,
    tokenizer: Detokenizer | None,
    prompt: list[int],
    params: SamplingParams,
    seed: int,
    index: int,
    room: int,
    replay_start: int,
) -> CompletionOutput:
    """The completion number `index`, of at most `room` tokens."""
    budget = room if params.max_tokens is None else min(room, params.max_tokens)
    ends = stop_ids(params, model.config.eos_token_id)
    completion = CompletionOutput(index=index, text="", token_ids=[])
    if params.logprobs is not None:
        completion.logprobs = []
        completion.cumulative_logprob = 0.0
    while completion.finish_reason is None:
        sequence = torch.tensor(prompt + completion.token_ids)  # [T]
        logits = model.forward(sequence, replay_start=replay_start)[-1]  # [V]
        drawn = sampler.draw(
            logits,
            params,
            seed=seed,
            position=len(sequence),
            sample_index=index,
            banned=ends if len(completion.token_ids) < params.min_tokens else (),
        )
        _append(completion, drawn, logits, params)
        _finish(completion, tokenizer, params, ends, model.config.eos_token_id, budget)
    return completion


def stop_ids(params: SamplingParams, eos: int) -> frozenset[int]:
    """The ids that end a completion, and that are not drawn before `min_tokens`."""
    return frozenset(params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, eos))


def _append(completion: CompletionOutput, drawn: sampler.Draw, logits: Tensor, params: SamplingParams) -> None:
    completion.token_ids.append(drawn.token)
    if completion.logprobs is None or completion.cumulative_logprob is None or params.logprobs is None:
        return
    reported = [drawn.token, *sampler.top_tokens(logits, params.logprobs)]
    logprobs = sampler.raw_logprobs(logits)  # [V]
    completion.logprobs.append({t: Logprob(float(logprobs[t]), sampler.rank(logits, t)) for t in reported})
    completion.cumulative_logprob += drawn.logprob


def _finish(
    completion: CompletionOutput,
    tokenizer: Detokenizer | None,
    params: SamplingParams,
    ends: frozenset[int],
    eos: int,
    budget: int,
) -> None:
    """Set the text, and the reasons if the newest token ends the completion."""
    ids = completion.token_ids
    stopped_by_id = ids[-1] in ends
    visible = ids[:-1] if stopped_by_id else ids
    completion.text = _text(tokenizer, visible)
    match = None
    if len(ids) > params.min_tokens:
        settled = _text(tokenizer, ids[: params.min_tokens]).rstrip(INCOMPLETE)
        match = first_stop(completion.text, params.stop, len(settled))
    if match is not None:
        completion.text = completion.text[: match[0]]
        _end(completion, "stop", match[1])
    elif stopped_by_id:
        _end(completion, "stop", None if ids[-1] == eos and not params.ignore_eos else ids[-1])
    elif len(ids) >= budget:
        _end(completion, "length", None)


def _end(completion: CompletionOutput, reason: FinishReason, stop_reason: int | str | None) -> None:
    completion.finish_reason = reason
    completion.stop_reason = stop_reason


def _text(tokenizer: Detokenizer | None, ids: list[int]) -> str:
    return "" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens=True)


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
