"""The error types that reach a user. They know nothing about who raises them.

A message names the argument, the value it got and what would be accepted.
"""

import difflib
from collections.abc import Iterable

_NEAR = 0.65  # share of two names' characters that agree in order: a misspelling has more, another option's name less


class CounterpointError(Exception):
    """Root of every error that this project raises on purpose."""


class ConfigError(CounterpointError, ValueError):
    """A model configuration breaks a type or a cross-field law."""


class CheckpointError(CounterpointError, ValueError):
    """A checkpoint folder does not hold exactly the tensors that its configuration asks for."""


class RequestError(CounterpointError, ValueError):
    """A request or one of its arguments cannot be served."""


class UnsupportedError(CounterpointError, NotImplementedError):
    """A known option that this version does not support yet."""


class KernelUnavailableError(CounterpointError, RuntimeError):
    """No implementation of an operation on the chosen backend."""


class EngineError(CounterpointError, RuntimeError):
    """The engine cannot go on; what it had promised is broken."""


def shown(value: object, limit: int = 300) -> str:
    """`repr` for a message: cut to limit characters, of a huge integer its size alone, never an error of its own."""
    try:
        if isinstance(value, int) and value.bit_length() > 256:
            return f"an integer of {value.bit_length()} bits"
        if isinstance(value, str | bytes | list | tuple) and len(value) > limit:
            value = value[:limit]
        text = repr(value)
    except Exception:  # noqa: BLE001 - the value's own repr may raise anything
        return f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """`; nearest is 'x'` for the closest known name, for a message; empty if none is near.

    prefix: what all names begin with, which makes none nearer than another.
    """
    rests = [one.removeprefix(prefix) for one in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), rests, n=1, cutoff=_NEAR)
    return f"; nearest is {prefix + close[0]!r}" if close else ""
