"""Random structured requests, and grammars that no engine should suffer from.

Knows `so_args` and what its languages are made of; knows nothing about compilers. A request is JSON: {"prompt",
"params"} and, of a language that has them, its "rules" (see `languages`).
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from equivalence.generators import drafting, languages, schemas
from equivalence.generators.batches import Request

KINDS = ("json", "regex", "ebnf", "choice", "json", "any", "regex", "ebnf")

_JSON_CHARACTERS = '"{}[]:, 01ab-'

_WORDS = ("yes", "no", "yesterday", "a,b", '"q"', "a\\b", "ab c", "é", 'say "no"')


def draw_request(rng: random.Random, vocabulary: int, kind: str) -> Request:
    """A request in a language of one of KINDS; a bias on some of its characters lets drafts be kept now and then."""
    so_args: dict[str, Any]
    request: Request = {"prompt": [rng.randrange(vocabulary) for _ in range(rng.choice((1, 2, 3, 8, 17)))]}
    characters = languages.ALPHABET
    if kind in ("json", "any"):
        so_args = {"schema_type": "json", "schema": None if kind == "any" else schemas.draw_schema(rng)}
        characters = _JSON_CHARACTERS
    elif kind == "choice":
        words = rng.sample(_WORDS, rng.randint(1, 5))
        so_args, characters = {"schema_type": "choice", "schema": words}, "".join(words)
    else:
        regular = kind == "regex"
        request["rules"] = (languages.draw_regular if regular else languages.draw_context_free)(rng)
        text = (languages.to_pattern if regular else languages.to_ebnf)(request["rules"])
        so_args = {"schema_type": kind, "schema": text}
    params = drafting.draw_sampling(rng, vocabulary, rng.choice((6, 12, 24, 36)))
    likely = sorted({*_ids(characters, vocabulary), *rng.choice(((), (drafting.EOS,)))})
    few = rng.sample(likely, min(len(likely), rng.choice((2, 4, 8))))
    params["logit_bias"] = {str(token): rng.choice((9.0, 10.0, 11.5)) for token in few}
    if "stop_token_ids" in params:
        params["stop_token_ids"] = rng.sample(likely, 1)
    if rng.random() < 0.1:
        params["stop"] = [rng.choice(characters)]
    return {**request, "params": {**params, "n": rng.choice((1, 1, 1, 2)), "so_args": so_args}}


@functools.cache
def _ids(characters: str, vocabulary: int) -> frozenset[int]:
    """The tokens that the characters are written with."""
    tokenizer = drafting.tokenizer_of(vocabulary)
    return frozenset(token for one in characters for token in tokenizer.encode(one, add_special_tokens=False).ids)


def hostile() -> Iterator[dict[str, Any]]:
    """Grammars that are broken, empty, deep, huge, ambiguous without bound, or ask for what cannot be enforced."""
    deep = "(" * 100 + "a" + ")" * 100
    schemas_of_json: tuple[str | dict[str, Any], ...] = (
        "{",
        "",
        "[" * 60_000,
        '{"type":"array","items":' * 100 + "{}" + "}" * 100,
        json.dumps({"title": "a" * 2**20}),
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]},
        {"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {}}},
        {"type": "array", "items": {"type": "string", "minLength": 3, "pattern": "a"}},
        {"type": "string", "pattern": "(a*)*b"},
        {"not": {}},
        {"if": True, "then": False},
        {"type": "array", "uniqueItems": True, "minItems": 2},
        {"type": "array", "contains": {"const": "no such item"}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "array", "unevaluatedItems": False, "minItems": 1},
        {"type": "object", "dependentSchemas": {"a": False}},
    )
    for schema in schemas_of_json:
        yield {"schema_type": "json", "schema": schema}
    for pattern in (
        "(",
        "[",
        "a{2",
        "*",
        "((a*)*)*b",
        "(a|a?)+b",
        "(a*a*)*b",
        "(a{0,50}){0,50}b",
        "a{100000}",
        "((((a{30}){30}){30}){30})",
        "(?=a)b",
        r"(a)\1",
        "a" * 10**6,
        deep,
    ):
        yield {"schema_type": "regex", "schema": pattern}
    for grammar in (
        "",
        'root ::= "a',
        "root ::= x",
        'root ::= root "a"',
        'root ::= "" root',
        "root ::= \0",
        f"root ::= {deep}",
        'start ::= "a"',
        'root ::= "a" ' * 3,
        'root ::= ("a"* "a"*)* "b"',
        'root ::= ((("a"{0,99}){0,99}){0,99}){0,99} "b"',
        'root ::= "' + "a" * 2**20 + '"',
    ):
        yield {"schema_type": "ebnf", "schema": grammar}
    for texts in (["\ud800"], ["a" * 10**6], ["ab"] * 10_000 + ["\0"]):
        yield {"schema_type": "choice", "schema": texts}
