"""Every keyword that a schema may hold is enforced by the installed compiler; every other one is refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import xgrammar

from optimized.engine.structured.json_schema import FORMATS, NEVER_ENFORCED, OF_TYPE
from optimized.engine.structured.language import Language
from reference.spec.errors import RequestError

pytestmark = pytest.mark.ci

INTEGER = {"type": "integer"}
AB = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}

#: (schema, a text that is valid, one that is not). Between them they hold every keyword that is accepted.
ENFORCED: list[tuple[Any, str, str]] = [
    ({"type": "null"}, "null", "1"),
    ({"type": "boolean"}, "true", "1"),
    ({**INTEGER, "multipleOf": 5}, "10", "11"),
    ({**INTEGER, "minimum": 5, "maximum": 20}, "5", "21"),
    ({**INTEGER, "exclusiveMinimum": 5}, "6", "5"),
    ({"type": "number", "exclusiveMaximum": 5}, "4.5", "5.5"),
    ({"type": "string", "minLength": 2}, '"ab"', '"a"'),
    ({"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    ({"type": "string", "pattern": "^a+$"}, '"aa"', '"b"'),
    ({"type": "array", "items": INTEGER}, "[1, 2]", '["a"]'),
    ({"type": "array", "prefixItems": [INTEGER, {"type": "null"}]}, "[1, null]", "[null, 1]"),
    ({"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3}, "[1, 2]", "[1]"),
    ({"type": "array", "items": INTEGER, "maxItems": 2}, "[1, 2]", "[1, 2, 3]"),
    ({**AB, "required": ["a"]}, '{"a": 1}', '{"b": 1}'),
    ({**AB, "additionalProperties": False}, '{"a": 1}', '{"c": 1}'),
    ({"type": "object", "additionalProperties": INTEGER}, '{"c": 1}', '{"c": "x"}'),
    ({"type": "object", "patternProperties": {"^x$": INTEGER}}, '{"x": 1}', '{"x": "s"}'),
    (
        {"type": "object", "propertyNames": {"type": "string", "maxLength": 1}, "additionalProperties": INTEGER},
        '{"x": 1}',
        '{"ab": 1}',
    ),
    ({"type": "object", "propertyNames": {"enum": ["x"]}}, '{"x": 1}', '{"a": 1}'),
    ({"type": "object", "propertyNames": {"pattern": "^x+$"}, "additionalProperties": INTEGER}, '{"x": 1}', '{"a": 1}'),
    ({**AB, "minProperties": 2}, '{"a": 1, "b": 1}', '{"a": 1}'),
    ({**AB, "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 1}'),
    ({"enum": ["a", 1]}, '"a"', '"b"'),
    ({"enum": ["a", "b"], "type": "string"}, '"a"', '"c"'),
    ({"const": 3, "type": ["integer", "null"]}, "3", "null"),
    ({"anyOf": [INTEGER, {"type": "null"}]}, "null", '"a"'),
    ({"oneOf": [INTEGER, {"type": "null"}]}, "1", '"a"'),
    ({"allOf": [{**INTEGER, "minimum": 5}]}, "6", "1"),
    ({"$ref": "#/$defs/x", "$defs": {"x": INTEGER}, "$id": "urn:a"}, "1", '"a"'),
    ({"$ref": "#/definitions/x", "definitions": {"x": INTEGER}}, "1", '"a"'),
    ({**AB, "properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}}, '{"b": 1}', '{"b": null}'),
    ({"type": ["integer", "null"], "minimum": 5}, "null", "1"),
    ({**INTEGER, "title": "t", "description": "d", "default": {"not": {}}, "examples": [], "x-mine": 1}, "1", '"a"'),
]

REFUSED: list[tuple[Any, str]] = [
    *[({**INTEGER, name: {}}, name) for name in sorted(NEVER_ENFORCED - {"$id"})],
    ({"minimum": 5}, "'minimum' is not enforced without a 'type'"),
    ({"type": "string", "minimum": 5}, "'minimum' is not enforced with type 'string'"),
    ({"type": "number", "multipleOf": 0.5}, "'multipleOf' is not enforced with type 'number'"),
    ({"type": "string", "pattern": "a", "minLength": 1}, "'minLength' is not enforced beside 'pattern'"),
    ({"type": "string", "format": "date", "maxLength": 1}, "'maxLength' is not enforced beside 'format'"),
    ({"type": "string", "format": "zork"}, "format: got 'zork'"),
    ({"type": "string", "pattern": '"'}, "which a JSON string must escape"),
    ({"type": "string", "pattern": r"\x22"}, "which a JSON string must escape"),
    ({"type": "string", "pattern": "(a*)*"}, "#/pattern: nested quantifiers"),
    ({"enum": ["a", 1], "type": "integer"}, "'type' is not enforced beside 'enum'"),
    ({"const": True, "type": "integer"}, "'type' is not enforced beside 'const'"),
    ({"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": INTEGER}}, "'minimum' is not enforced beside '$ref'"),
    ({"$ref": "#foo"}, "'$ref' is enforced for"),
    ({"$ref": "#/default", "default": {"not": {}}}, "accepted: the place of a subschema"),
    ({"$ref": "#/x-y", "x-y": {"not": {}}}, "accepted: the place of a subschema"),
    ({"anyOf": [INTEGER], "type": "integer"}, "'type' is not enforced beside 'anyOf'"),
    ({"allOf": [INTEGER, {"minimum": 5}]}, "'allOf' is enforced for exactly one"),
    ({**AB, "anyOf": [{"required": ["a"]}]}, "is not enforced beside 'anyOf'"),
    ({**AB, "required": ["z"]}, "'z' is none"),
    ({**AB, "additionalProperties": True}, "'additionalProperties' is enforced beside 'properties' for false only"),
    ({**AB, "patternProperties": {"^x": INTEGER}}, "'properties' is not enforced beside 'patternProperties'"),
    ({**AB, "propertyNames": {"minLength": 1}}, "'properties' is not enforced beside 'propertyNames'"),
    ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, "'minProperties' is enforced where"),
    ({"type": "array", "items": {"properties": {}}}, "#/items: the keyword 'properties'"),
    ({**INTEGER, "minimun": 5}, "'minimun' is not enforced; nearest is 'minimum'"),
    ({"type": "strin"}, "#/type: got 'strin'"),
    ({"type": "object", "properties": []}, "#/properties: got"),
    ({"type": "object", "required": "a"}, "#/required: got 'a'"),
    ({"anyOf": INTEGER}, "#/anyOf: got"),
    ({"type": "array", "items": [INTEGER]}, "#/items: got"),
    ({"$defs": 5}, "#/$defs: got 5"),
    ('{"type":"integer","type":"string"}', "key 'type' appears twice"),
    ('{"const":NaN}', "NaN is not JSON"),
    ("", "not JSON"),
    ("{", "not JSON"),
    ("5", "#: got 5"),
    ("[" * 60000, "nested too deep"),
    ('{"type":"array","items":' * 100 + "{}" + "}" * 100, "nested deeper than 32"),
    (json.dumps({"anyOf": [{}] * 4096}), "more than 4096 subschemas"),
    ('{"title":"' + "a" * 2**20 + '"}', "bytes; accepted: at most 65536"),
    ({"const": {1, 2}}, "not JSON"),
]


def tokens() -> xgrammar.TokenizerInfo:
    """A token for each byte."""
    return xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)], vocab_size=257, stop_token_ids=[256])


def matches(schema: Any, text: str) -> bool:
    compiler = xgrammar.GrammarCompiler(tokens(), max_threads=1)
    language = Language.of({"schema_type": "json", "schema": schema})
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(language.text, any_whitespace=False))
    return matcher.accept_string(text) and matcher.is_completed()


@pytest.mark.parametrize("schema, good, bad", ENFORCED, ids=lambda one: str(one)[:60])
def test_what_is_accepted_is_enforced(schema: Any, good: str, bad: str) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(good))
    assert not jsonschema.Draft202012Validator(schema).is_valid(json.loads(bad))
    assert matches(schema, good)
    assert not matches(schema, bad)


def test_the_examples_hold_every_keyword_that_is_accepted() -> None:
    shown = json.dumps([schema for schema, _, _ in ENFORCED])
    assert [
        name for name in sorted(frozenset().union(*OF_TYPE.values()) - {"format"}) if f'"{name}"' not in shown
    ] == []


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_refuses_something(name: str) -> None:
    assert not matches({"type": "string", "format": name}, '"!! \\n x"')


@pytest.mark.parametrize("schema, message", REFUSED, ids=lambda one: str(one)[:60])
def test_what_would_not_be_enforced_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        Language.of({"schema_type": "json", "schema": schema})
    assert message in str(refused.value)
