"""Where a request enters: prompts and parameters are checked here, once, before anything is queued.

Knows the shapes a prompt may have and the limits of model and engine; knows nothing about scheduling or sampling.
Two kinds of mistake are kept apart. A bad *argument* of the call (`prompt_list`, `params_list`) raises RequestError,
and nothing has happened. A bad *request* becomes a Refusal, which turns into an output of its own and touches no other.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimized.engine.seeds import SeedSource
from optimized.engine.structured.language import Language, check_available
from optimized.tokenizer import Tokenizer
from reference.spec.errors import RequestError, UnsupportedError, nearest, shown
from reference.spec.outputs import RequestOutput
from reference.spec.sampling import SamplingParams

PROMPT_KEYS = ("prompt", "prompt_token_ids")
ACCEPTED_PROMPTS = "a string, a list of token ids, or {'prompt_token_ids': [...]}"


@dataclass(frozen=True)
class Request:
    """A request that may run.

    request_id: as in the output. prompt: None if it came as ids. seed: unsigned 64-bit. max_tokens: at least 1,
    already cut to what the context limit leaves. language: that its texts must be in, None: any.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_tokens: int
    language: Language | None = None


@dataclass(frozen=True)
class Refusal:
    """A request that cannot run, and why."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[Any]
    error: str

    def output(self) -> RequestOutput:
        """The request's output: one completion with finish_reason "error"."""
        return RequestOutput.refused(self.request_id, self.prompt, self.prompt_token_ids, self.error)


@dataclass(frozen=True)
class Limits:
    """What a request must fit into.

    vocab_size: ids are 0 .. vocab_size - 1. max_model_len: tokens of prompt and output together.
    explain_never: (prompt length, max_tokens) -> why such a request can never run, "" if it can.
    """

    vocab_size: int
    max_model_len: int
    explain_never: Callable[[int, int], str]


class Door:
    """Turns prompts and parameters into requests or refusals, one at a time, in order."""

    def __init__(self, limits: Limits, tokenizer: Tokenizer | None, seeds: SeedSource) -> None:
        self._limits = limits
        self._tokenizer = tokenizer
        self._seeds = seeds

    def admit(self, request_id: str, prompt: Any, params: SamplingParams) -> Request | Refusal:
        """One request. A seed is drawn only for a request that may run, so that a bad one shifts nobody's."""
        text: str | None = None
        ids: Any = []
        try:
            text, ids = _split(prompt)
            token_ids = _checked_ids(ids, self._limits.vocab_size) if text is None else self._encode(text)
            max_tokens = self._max_tokens(len(token_ids), params)
            language = self._check_params(params)
        except (RequestError, UnsupportedError) as error:
            given = ids if isinstance(ids, list | tuple) else []
            return Refusal(request_id, text, list(given), f"request {request_id}: {error}")
        seed = self._seeds.draw() if params.seq_seed is None else params.seq_seed
        return Request(request_id, text, token_ids, params, seed, max_tokens, language)

    def _encode(self, text: str) -> list[int]:
        if not text:
            raise RequestError("prompt: got ''; accepted: a string of at least one character")
        if self._tokenizer is None:
            raise RequestError(
                f"prompt: got {shown(text)}, but the checkpoint has no tokenizer.json; accepted: token ids"
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"prompt: got {shown(text)}; accepted: text without lone surrogates") from error
        return _checked_ids(self._tokenizer.encode(text), self._limits.vocab_size)

    def _max_tokens(self, length: int, params: SamplingParams) -> int:
        room = self._limits.max_model_len - length
        if room < 1:
            raise RequestError(
                f"prompt: got {length} tokens; accepted: at most {self._limits.max_model_len - 1}, so that one more "
                f"fits into max_model_len = {self._limits.max_model_len}"
            )
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        reason = self._limits.explain_never(length, max_tokens)
        if reason:
            raise RequestError(f"prompt of {length} tokens with max_tokens = {max_tokens}: {reason}")
        return max_tokens

    def _check_params(self, params: SamplingParams) -> Language | None:
        check_available(params)
        for name in ("stop", "so_args"):
            if getattr(params, name) and self._tokenizer is None:
                given, neutral = getattr(params, name), getattr(SamplingParams(), name)
                raise RequestError(
                    f"{name}: got {shown(given)}, but the checkpoint has no tokenizer.json; accepted: {neutral}"
                )
        for name in ("stop_token_ids", "logit_bias"):
            for token in getattr(params, name) or ():
                if token >= self._limits.vocab_size:
                    accepted = f"integers from 0 to {self._limits.vocab_size - 1}"
                    raise RequestError(f"{name}: got {token}; accepted: {accepted}")
        if params.so_args is None:
            return None
        try:
            return Language.of(params.so_args)
        except RequestError as error:
            raise RequestError(f"so_args: {error}") from error


def prompt_list(prompts: Any) -> list[Any]:
    """The prompts of a call, as a list.

    One prompt is a string, a dict, an array of ids, or a list of ids: a list that starts with a number and holds no
    list, dict or array. Any other list holds one prompt an element; whether each is a good prompt is seen at the door.

    Raises:
        RequestError: neither a prompt nor a list of prompts.
    """
    if isinstance(prompts, str | Mapping) or _is_array(prompts):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise RequestError(f"prompts: got {shown(prompts)}; accepted: {ACCEPTED_PROMPTS}, or a list of these")
    nested = any(isinstance(item, list | tuple | Mapping) or _is_array(item) for item in prompts)
    if prompts and not nested and isinstance(prompts[0], int | float | np.number):
        return [list(prompts)]
    return list(prompts)


def params_list(params: Any, count: int) -> list[SamplingParams]:
    """One SamplingParams a prompt: the defaults for None, one object for all, or a list of exactly `count`.

    Raises:
        RequestError: another type, or another length.
        UnsupportedError: a parameter that needs a package which is not installed.
    """
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        check_available(params)
        return [params] * count
    if not isinstance(params, list | tuple):
        raise RequestError(f"sampling_params: got {shown(params)}; accepted: SamplingParams, or a list of {count}")
    for index, item in enumerate(params):
        if not isinstance(item, SamplingParams):
            raise RequestError(f"sampling_params[{index}]: got {shown(item)}; accepted: SamplingParams")
        check_available(item)
    if len(params) != count:
        raise RequestError(f"sampling_params: got a list of {len(params)}; accepted: a list of {count}, one a prompt")
    return list(params)


def _split(prompt: Any) -> tuple[str | None, Any]:
    """(text, ids) of one prompt; one of the two is None."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, Mapping):
        return None, prompt
    for key in prompt:
        if key not in PROMPT_KEYS:
            raise RequestError(
                f"prompt: unknown key {shown(key)}{nearest(shown(key), list(PROMPT_KEYS))}; accepted: {PROMPT_KEYS}"
            )
    if len(prompt) != 1:
        raise RequestError(f"prompt: got keys {sorted(prompt)}; accepted: exactly one of {PROMPT_KEYS}")
    if "prompt_token_ids" in prompt:
        return None, prompt["prompt_token_ids"]
    if not isinstance(prompt["prompt"], str):
        raise RequestError(f"prompt: got {shown(prompt['prompt'])}; accepted: a string")
    return prompt["prompt"], None


def _checked_ids(ids: Any, vocab_size: int) -> list[int]:
    """The ids as plain integers; a bool, a float and a numeral in a string are not integers."""
    if _is_array(ids):
        ids = ids.tolist()
    if not isinstance(ids, list | tuple):
        raise RequestError(f"prompt: got {shown(ids)}; accepted: {ACCEPTED_PROMPTS}")
    if not ids:
        raise RequestError("prompt_token_ids: got []; accepted: at least one token id")
    accepted = f"integers from 0 to {vocab_size - 1}"
    return [_checked_id(index, value, vocab_size, accepted) for index, value in enumerate(ids)]


def _checked_id(index: int, value: Any, vocab_size: int, accepted: str) -> int:
    if not isinstance(value, bool | np.bool_) and isinstance(value, int | np.integer):
        token = operator.index(value)
        if 0 <= token < vocab_size:
            return token
    raise RequestError(f"prompt_token_ids[{index}]: got {shown(value)}; accepted: {accepted}")


def _is_array(value: Any) -> bool:
    """NumPy arrays and torch tensors, told without importing torch."""
    return isinstance(value, np.ndarray) or (hasattr(value, "tolist") and hasattr(value, "ndim") and value.ndim > 0)
