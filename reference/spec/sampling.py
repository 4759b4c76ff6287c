"""`SamplingParams`: how one request is sampled and when it stops. It knows nothing about prompts, models or devices."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Literal

from reference.spec.errors import RequestError, nearest, shown

MAX_TOKEN_ID = 2**31 - 1
MAX_SEED = 2**64 - 1
LARGEST = sys.float_info.max

#: Largest |presence_penalty| and |frequency_penalty|, and largest |bias| of a token: vLLM's ranges.
MAX_PENALTY = 2.0
MAX_BIAS = 100.0

#: What reported logprobs are the log-softmax of: the model's own logits, or what the token was drawn from.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]

#: What `so_args["schema"]` may be, by `so_args["schema_type"]`. None with json: any JSON value.
SCHEMA_TYPES: dict[str, tuple[type, ...]] = {
    "json": (str, dict, type(None)),
    "regex": (str,),
    "ebnf": (str,),
    "choice": (list, tuple),
}


def _refuse(name: str, value: Any, law: str) -> None:
    raise RequestError(f"SamplingParams.{name} = {shown(value)}: {law}")


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        _refuse(name, value, f"must be an int in {low}..{high}")
    return int(value)


def _number(name: str, value: Any, low: float, high: float, law: str) -> float:
    if type(value) not in (int, float) or not low <= value <= high:
        _refuse(name, value, law)
    return float(value)


class _CheckedKeywords(type):
    """Refuses an unknown keyword with the name of the nearest one, instead of a bare TypeError."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args:
            raise RequestError(f"SamplingParams takes keywords only, got the positional value {shown(args[0])}")
        known = [field.name for field in dataclasses.fields(SamplingParams)]
        for name in kwargs:
            if name not in known:
                raise RequestError(f"SamplingParams has no parameter {name!r}{nearest(name, known)}")
        return super().__call__(**kwargs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams(metaclass=_CheckedKeywords):
    """Validated at construction; the defaults are vLLM's.

    n: completions per prompt. max_tokens: None means up to the context limit.
    temperature: 0 is a true argmax. top_k: 0 or -1 is off. top_p: in (0, 1]. min_p: in [0, 1].
    min_tokens: stop ids and stop strings are not honoured, and stop ids not sampled, before this many tokens.
    stop: a string or strings that end the text and are left out of it, kept as a tuple.
    stop_token_ids: ids that end it, besides the model's EOS, kept as a tuple.
    ignore_eos: go on past the EOS. seq_seed: seed of this request's noise; None takes the engine's.
    logprobs: how many of the most likely tokens to report besides the sampled one; None is off. They are raw
        unless the engine's `logprobs_mode` says otherwise.
    prompt_logprobs: the same for every prompt token but the first. Such a request is never replayed from a later start.
    repetition_penalty: above 0; a positive logit of a token of prompt or output is divided by it, another multiplied.
    frequency_penalty, presence_penalty: in [-2, 2]; subtracted from a logit times the token's count in the output, or
    once if the output holds it.
    logit_bias: token id -> number in [-100, 100], added before anything else. Ids may be decimal strings, as in JSON.
    so_args: {"schema_type": json | regex | ebnf | choice, "schema": ...}, the language the text must be in.

    The order is bias, repetition, frequency and presence penalty, grammar and `min_tokens` masks, [the greedy exit],
    temperature, top-k, top-p, min-p.

    Raises:
        RequestError: a wrong type (a bool is no int), a value out of range, an unknown name.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seq_seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = dataclasses.field(default=None, hash=False)
    so_args: dict[str, Any] | None = dataclasses.field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _refuse("min_tokens", self.min_tokens, f"must not exceed max_tokens = {self.max_tokens}")

    def _checked(self) -> dict[str, Any]:
        top_k = _integer("top_k", self.top_k, -1, MAX_TOKEN_ID)
        top_p = _number("top_p", self.top_p, 0.0, 1.0, "must be a number in (0, 1]")
        if top_p == 0.0:
            _refuse("top_p", self.top_p, "must be a number in (0, 1]")
        if type(self.ignore_eos) is not bool:
            _refuse("ignore_eos", self.ignore_eos, "must be a bool")
        return {
            "n": _integer("n", self.n, 1, 65536),
            "temperature": _number("temperature", self.temperature, 0.0, LARGEST, "must be finite and not below 0"),
            "top_p": top_p,
            "top_k": 0 if top_k == -1 else top_k,
            "min_p": _number("min_p", self.min_p, 0.0, 1.0, "must be a number in [0, 1]"),
            "max_tokens": self._optional("max_tokens", 1, MAX_TOKEN_ID),
            "min_tokens": _integer("min_tokens", self.min_tokens, 0, MAX_TOKEN_ID),
            "stop": self._stop_strings(),
            "stop_token_ids": self._stop_ids(),
            "seq_seed": self._optional("seq_seed", 0, MAX_SEED),
            "logprobs": self._optional("logprobs", 0, MAX_TOKEN_ID),
            "prompt_logprobs": self._optional("prompt_logprobs", 0, MAX_TOKEN_ID),
            "presence_penalty": self._penalty("presence_penalty"),
            "frequency_penalty": self._penalty("frequency_penalty"),
            "repetition_penalty": self._repetition(),
            "logit_bias": self._biases(),
            "so_args": self._structure(),
        }

    def _penalty(self, name: str) -> float:
        return _number(name, getattr(self, name), -MAX_PENALTY, MAX_PENALTY, "must be a number in [-2, 2]")

    def _repetition(self) -> float:
        law = "must be finite and above 0"
        penalty = _number("repetition_penalty", self.repetition_penalty, 0.0, LARGEST, law)
        if penalty == 0.0:
            _refuse("repetition_penalty", self.repetition_penalty, law)
        return penalty

    def _biases(self) -> dict[int, float] | None:
        law = "must map token ids to numbers in [-100, 100]"
        if self.logit_bias is None:
            return None
        if not isinstance(self.logit_bias, dict):
            _refuse("logit_bias", self.logit_bias, law)
        biases: dict[int, float] = {}
        for key, value in self.logit_bias.items():
            decimal = isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdigit()
            token = _integer("logit_bias", int(key) if decimal else key, 0, MAX_TOKEN_ID)
            if token in biases:
                _refuse("logit_bias", self.logit_bias, f"must name token {token} once")
            biases[token] = _number("logit_bias", value, -MAX_BIAS, MAX_BIAS, law)
        return biases or None

    def _structure(self) -> dict[str, Any] | None:
        given = self.so_args
        if given is None:
            return None
        if not isinstance(given, dict) or set(given) != {"schema_type", "schema"}:
            _refuse("so_args", given, "must be {'schema_type': ..., 'schema': ...}")
        kind, schema = given["schema_type"], given["schema"]
        if not isinstance(kind, str) or kind not in SCHEMA_TYPES:
            _refuse("so_args", given, f"schema_type must be one of {', '.join(SCHEMA_TYPES)}")
        if not isinstance(schema, SCHEMA_TYPES[kind]):
            accepted = " or ".join(one.__name__ for one in SCHEMA_TYPES[kind])
            _refuse("so_args", given, f"schema must be a {accepted} for schema_type {kind!r}")
        if kind == "choice" and not (schema and all(isinstance(item, str) and item for item in schema)):
            _refuse("so_args", given, "schema must be a non-empty list of non-empty strings")
        return dict(given)

    def _optional(self, name: str, low: int, high: int) -> int | None:
        value = getattr(self, name)
        return None if value is None else _integer(name, value, low, high)

    def _stop_strings(self) -> tuple[str, ...]:
        stop: Any = () if self.stop is None else self.stop
        stop = (stop,) if isinstance(stop, str) else stop
        if not isinstance(stop, list | tuple) or not all(isinstance(item, str) and item for item in stop):
            _refuse("stop", self.stop, "must be a non-empty string or a list of them")
        return tuple(stop)

    def _stop_ids(self) -> tuple[int, ...]:
        ids: Any = () if self.stop_token_ids is None else self.stop_token_ids
        if not isinstance(ids, list | tuple):
            _refuse("stop_token_ids", self.stop_token_ids, "must be a list of token ids")
        return tuple(_integer("stop_token_ids", item, 0, MAX_TOKEN_ID) for item in ids)
