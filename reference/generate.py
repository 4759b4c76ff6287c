"""Generation for one prompt, as plain as can be: a full forward pass over the whole sequence for every new token.

Knows prompts and the order of things; knows nothing about batches, caches or how the logits come about. When a
completion ends and what its text is: `reference.completion`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference import adjustments, logprobs, sampler
from reference.adjustments import Context, Grammar
from reference.completion import Completion, Detokenizer
from reference.spec.config import ModelConfig
from reference.spec.errors import RequestError, UnsupportedError
from reference.spec.outputs import CompletionOutput, Logprob, RequestOutput
from reference.spec.sampling import LogprobsMode, SamplingParams

__all__ = ["Call", "Detokenizer", "LanguageModel", "generate", "token_by_token"]


class LanguageModel(Protocol):
    """What generation asks of a model."""

    config: ModelConfig

    def forward(self, tokens: Tensor, replay_start: int = 0) -> Tensor:
        """Logits [T, V] of the token ids [T] int64."""


@dataclass(frozen=True)
class Call:
    """One request with everything that its completions share.

    seed: unsigned 64-bit. limit: the most tokens of prompt and output together. vocab_size: ids from here on are
    padding. For the others see :func:`generate`.
    """

    model: LanguageModel
    tokenizer: Detokenizer | None
    prompt: list[int]
    params: SamplingParams
    seed: int
    limit: int
    replay_start: int
    logprobs_mode: LogprobsMode
    grammar: Grammar | None
    vocab_size: int

    def completion(self, index: int) -> Completion:
        """An empty completion."""
        room = self.limit - len(self.prompt)
        budget = room if self.params.max_tokens is None else min(room, self.params.max_tokens)
        return Completion(self.tokenizer, self.params, self.model.config.eos_token_id, index, budget)

    def context(self, completion: Completion) -> Context:
        """What stands before the completion's next token."""
        return Context(self.prompt, list(completion.output.token_ids), completion.ends, self.grammar)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """Logits [T, V] after each of the tokens, −inf where the vocabulary is padding."""
        rows = self.model.forward(torch.tensor(tokens), replay_start=self.replay_start)  # [T, V]
        return adjustments.mask_padding(rows, self.vocab_size)  # [T, V]

    def reported(self, logits: Tensor, processed: Tensor) -> Tensor:
        """The row [V] whose log-softmax is reported, of a token's two."""
        return logits if self.logprobs_mode == "raw_logprobs" else processed


def token_by_token(call: Call, index: int) -> CompletionOutput:
    """The completion number `index`, one forward pass for each token."""
    completion = call.completion(index)
    while not completion.ended:
        context = call.context(completion)
        logits = call.logits([*context.prompt, *context.output])[-1]  # [V]
        drawn = sampler.draw(
            logits, call.params, seed=call.seed, position=context.position, sample_index=index, context=context
        )
        completion.append(drawn.token, call.reported(logits, drawn.row))
    return completion.output


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
    logprobs_mode: LogprobsMode = "raw_logprobs",
    grammar: Grammar | None = None,
    vocab_size: int | None = None,
    complete: Callable[[Call, int], CompletionOutput] = token_by_token,
) -> RequestOutput:
    """All n completions of one prompt.

    Args:
        tokenizer: makes the text; without one every text is empty and stop strings are refused.
        prompt_ids: at least one id of the vocabulary.
        request_seed: unsigned 64-bit, used where `params.seq_seed` is None.
        max_model_len: the most tokens of prompt and output together; the model's own limit by default.
        replay_start: see the model; fixed for the whole request. 0 for a request that asks for `prompt_logprobs`, which
            reads rows that a later start leaves meaningless.
        logprobs_mode: what the logprobs of the output are told from; those of the prompt are always raw.
        grammar: the language that every completion must stay in.
        vocab_size: ids from here on have no token and are never drawn; the model's own size by default.
        complete: makes one completion: `token_by_token`, or a :class:`reference.speculation.Speculation`.

    Raises:
        RequestError: an empty or too long prompt, an id outside the vocabulary, stop strings without a tokenizer, or
            logits from which nothing can be drawn.
        UnsupportedError: `so_args`; give the language as `grammar`.
    """
    if params.so_args is not None:
        raise UnsupportedError(f"request {request_id}: so_args is not compiled here; give the language as `grammar`")
    prompt = list(prompt_ids)
    limit = max_model_len or model.config.max_position_embeddings
    vocabulary = model.config.vocab_size if vocab_size is None else vocab_size
    _check_prompt(request_id, prompt, vocabulary, limit)
    _check_params(request_id, tokenizer, params, vocabulary)
    seed = request_seed if params.seq_seed is None else params.seq_seed
    start = replay_start if params.prompt_logprobs is None else 0
    call = Call(model, tokenizer, prompt, params, seed, limit, start, logprobs_mode, grammar, vocabulary)
    outputs = [complete(call, index) for index in range(params.n)]
    return RequestOutput(request_id, None, prompt, outputs, finished=True, prompt_logprobs=_of_prompt(call))


def _of_prompt(call: Call) -> list[dict[int, Logprob] | None] | None:
    """`prompt_logprobs` of the request's output; None where it does not ask for them."""
    count = call.params.prompt_logprobs
    return None if count is None else logprobs.of_prompt(call.logits(call.prompt), call.prompt, count)


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


def _check_params(request_id: str, tokenizer: Detokenizer | None, params: SamplingParams, vocab_size: int) -> None:
    if params.stop and tokenizer is None:
        raise RequestError(f"request {request_id}: stop = {list(params.stop)!r} needs a tokenizer")
    for token in params.logit_bias or ():
        if token >= vocab_size:
            raise RequestError(f"request {request_id}: logit_bias names token {token}; ids are 0..{vocab_size - 1}")
