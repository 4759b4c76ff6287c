"""The language that a request's text must be in, checked at the door and in the form that the compiler takes.

Knows `so_args` and what may be asked for; knows nothing about tokens, processes or masks. What is refused here costs
nobody else anything.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from typing import Any, Literal

from optimized.engine.structured.json_schema import check_schema
from optimized.engine.structured.patterns import checked_pattern
from reference.spec import json_file
from reference.spec.errors import RequestError, UnsupportedError
from reference.spec.sampling import SamplingParams

MAX_BYTES = 65536
MAX_EBNF_DEPTH = 64

Kind = Literal["json", "regex", "ebnf"]


@dataclass(frozen=True)
class Language:
    """kind: what the text is. text: a JSON schema, a regular expression, or a grammar in EBNF whose root is `root`."""

    kind: Kind
    text: str

    @classmethod
    def of(cls, so_args: dict[str, Any]) -> Language:
        """The language of checked `so_args`.

        Raises:
            RequestError: too large, not of its kind, or with something that could not be enforced.
        """
        kind, schema = so_args["schema_type"], so_args["schema"]
        if kind == "json":
            return cls("json", _json_text({} if schema is None else schema))
        if kind == "choice":
            return cls("ebnf", _alternatives(schema))
        _check_size(schema)
        if kind == "regex":
            return cls("regex", checked_pattern(schema))
        _check_depth(schema)
        return cls("ebnf", schema)


def check_available(params: SamplingParams) -> None:
    """Refuses structured output where its package is not installed.

    Raises:
        UnsupportedError: naming the extra.
    """
    if params.so_args is not None and importlib.util.find_spec("xgrammar") is None:
        raise UnsupportedError(
            "SamplingParams.so_args is not supported without the package xgrammar; install the extra `structured`: "
            "pip install 'counterpoint[structured]'"
        )


def _check_size(text: str) -> None:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise RequestError("a schema with a lone surrogate") from error
    if size > MAX_BYTES:
        raise RequestError(f"a schema of {size} bytes; accepted: at most {MAX_BYTES}")
    if "\0" in text:
        raise RequestError("a schema with a NUL character")


def _json_text(schema: str | dict[str, Any]) -> str:
    """A schema that may be compiled, as text of one form: without spaces, duplicates or NaN."""
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        _check_size(text)
        parsed = json_file.parse(text)
    except RequestError:
        raise
    except (TypeError, ValueError) as error:
        raise RequestError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("a JSON schema that is nested too deep") from error
    check_schema(parsed)
    return json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))


def _check_depth(grammar: str) -> None:
    """Refuses parentheses nested too deep; those in strings and classes are not told apart from others."""
    depth = 0
    for char in grammar:
        depth += (char == "(") - (char == ")")
        if depth > MAX_EBNF_DEPTH:
            raise RequestError(f"a grammar with parentheses nested deeper than {MAX_EBNF_DEPTH}")


def _alternatives(items: list[str]) -> str:
    """A grammar of exactly these texts."""
    grammar = "root ::= " + " | ".join(f'"{_escaped(item)}"' for item in dict.fromkeys(items))
    for text in (grammar, *items):
        _check_size(text)
    return grammar


def _escaped(text: str) -> str:
    """As the inside of a string of the grammar's syntax."""
    return "".join(f"\\u{ord(char):04x}" if char < " " or char in '"\\\x7f' else char for char in text)
