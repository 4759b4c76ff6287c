"""Whether a structured completion is what it must be, by judges that are not the compiler.

`json` and `jsonschema` for JSON, `re` for patterns, the recogniser of `equivalence.generators.languages` for grammars,
membership for choices. Knows requests and completions; knows no engine.
"""

from __future__ import annotations

import json
import re

import jsonschema

from equivalence.generators import languages
from equivalence.generators.batches import Request
from reference.spec import CompletionOutput

DEAD_END = "dead end"

_FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


def complaint(request: Request, completion: CompletionOutput) -> str:
    """What is wrong with a completion; empty if nothing is.

    A text that ended by itself or by a stop id is in the language. One that was cut (by length, stop string, abort, or
    at a dead end) can be carried on to one that is, where that can be told. Where a text is
    complete there is no dead end but before min_tokens.
    """
    if completion.error and DEAD_END not in completion.error:
        return f"error: {completion.error}"
    text = completion.text
    early = len(completion.token_ids) < request["params"].get("min_tokens", 0)
    if completion.error and not early and not _outside(request, text):
        return f"a dead end after {text!r}, which is complete"
    if completion.finish_reason == "stop" and not isinstance(completion.stop_reason, str):
        wrong = _outside(request, text)
        return f"{text!r} is not in its language: {wrong}" if wrong else ""
    text = text.rstrip("\ufffd")  # of a character whose last bytes were cut off
    return "" if _begins(request, text) else f"{text!r} begins no text of its language"


def invalid_json(request: Request, text: str) -> str:
    """Why a text is none of the JSON that the request asks for; empty if it is, or asks for no JSON."""
    so_args = request["params"]["so_args"]
    schema = so_args["schema"]
    return _invalid(text, schema) if so_args["schema_type"] == "json" and isinstance(schema, dict) else ""


def _outside(request: Request, text: str) -> str:
    """Why a text is not in the request's language, or empty."""
    kind, schema = request["params"]["so_args"]["schema_type"], request["params"]["so_args"]["schema"]
    if kind == "json":
        return _invalid(text, {} if schema is None else schema)
    if kind == "choice":
        return "" if text in schema else "none of the choices"
    if kind == "regex" and not re.fullmatch(schema, text):
        return "no full match"
    return "" if languages.contains(request["rules"], text) else "not recognised"


def _invalid(text: str, schema: dict[str, object]) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    validator = jsonschema.Draft202012Validator(schema, format_checker=_FORMATS)
    return "; ".join(error.message for error in validator.iter_errors(value))


def _begins(request: Request, text: str) -> bool:
    kind, schema = request["params"]["so_args"]["schema_type"], request["params"]["so_args"]["schema"]
    if kind == "choice":
        return any(one.startswith(text) for one in schema)
    return kind == "json" or languages.begins(request["rules"], text)
