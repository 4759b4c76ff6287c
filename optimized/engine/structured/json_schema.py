"""JSON schemas at the door: a keyword that the compiler would not enforce where it stands is refused by name.

Knows which keywords xgrammar 0.2.8 enforces beside which others, found by experiment; knows nothing about grammars. It
drops the rest without a word (`not`, `uniqueItems`, `contains`, `if`, `dependentRequired`, assertions beside `$ref`,
`anyOf`, `enum`, …), so that a text could leave the schema: nothing is accepted that is not listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimized.engine.structured.patterns import checked_pattern
from reference.spec.errors import RequestError, nearest, shown

MAX_DEPTH = 32
MAX_NODES = 4096

#: They assert nothing, and may stand anywhere.
ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
        "$comment",
        "$defs",
        "definitions",
    ]
)
_RANGE = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
#: What is enforced beside `type`.
OF_TYPE: dict[str, frozenset[str]] = {
    "null": frozenset(),
    "boolean": frozenset(),
    "integer": _RANGE | {"multipleOf"},
    "number": _RANGE,
    "string": frozenset(["minLength", "maxLength", "pattern", "format"]),
    "array": frozenset(["items", "prefixItems", "minItems", "maxItems"]),
    "object": frozenset(
        [
            "properties",
            "required",
            "additionalProperties",
            "minProperties",
            "maxProperties",
            "patternProperties",
            "propertyNames",
        ]
    ),
}
#: Enforced by their shape: the digits of a date are checked, not the calendar (2026-02-30 passes), and an IPv4 address
#: may have leading zeros.
FORMATS = frozenset(
    [
        "date",
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)
#: Keywords of one node of which only one is enforced; with the first, all others of the row are refused.
APART: tuple[tuple[str, frozenset[str]], ...] = (
    ("pattern", frozenset({"minLength", "maxLength", "format"})),
    ("format", frozenset({"minLength", "maxLength"})),
    ("patternProperties", frozenset({"properties", "required", "additionalProperties", "propertyNames"})),
    ("propertyNames", frozenset({"properties", "required"})),
)
#: Keywords of JSON Schema that the compiler passes over wherever they stand.
NEVER_ENFORCED = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "additionalItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "extends",
        "disallow",
        "divisibleBy",
        "$id",
    ]
)
_CHOICES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_TYPE_OF_VALUE: dict[type, tuple[str, ...]] = {
    type(None): ("null",),
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
}


def check_schema(schema: Any) -> None:
    """Refuses a schema that would not be enforced in full, or that is too deep or too large.

    Args:
        schema: parsed JSON.
    Raises:
        RequestError: with the keyword and its place as a JSON pointer.
    """
    pending: list[tuple[Any, str, int]] = [(schema, "#", 0)]
    places: dict[str, str] = {}  # of every subschema: its own $ref, or ""
    while pending:
        node, path, depth = pending.pop()
        places[path] = node.get("$ref", "") if isinstance(node, dict) else ""
        if depth > MAX_DEPTH:
            raise RequestError(f"a JSON schema nested deeper than {MAX_DEPTH}")
        if len(places) > MAX_NODES:
            raise RequestError(f"a JSON schema of more than {MAX_NODES} subschemas")
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise RequestError(f"{path}: got {shown(node)}; accepted: a JSON schema, that is an object or a boolean")
        _check_keywords(node, path)
        pending.extend((child, f"{path}/{name}", depth + 1) for name, child in _children(node, path))
    for path, target in places.items():
        if target and target not in places:
            raise RequestError(f"{path}/$ref: got {shown(target)}; accepted: the place of a subschema of this schema")


def _check_keywords(node: dict[str, Any], path: str) -> None:
    """One node, its children aside."""
    silent = ANNOTATIONS | {"$id"} if path == "#" else ANNOTATIONS
    assertions = [name for name in node if name not in silent and not name.startswith("x-")]
    chosen = next((name for name in _CHOICES if name in node), None)
    if chosen is not None:
        beside = [name for name in assertions if name != chosen]
        if beside == ["type"] and chosen in ("const", "enum"):
            _check_values(node, chosen, path)
            beside = []
        if beside:
            _refuse(path, beside[0], f"is not enforced beside {chosen!r}")
        if chosen == "allOf" and not (isinstance(node["allOf"], list) and len(node["allOf"]) == 1):
            _refuse(path, "allOf", "is enforced for exactly one schema only")
        if chosen == "$ref" and not (isinstance(node["$ref"], str) and (node["$ref"] + "/").startswith("#/")):
            _refuse(path, "$ref", 'is enforced for "#" and "#/..." only')
        return
    types = node.get("type")
    listed = types if isinstance(types, list) else [] if types is None else [types]
    for one in listed:
        if not isinstance(one, str) or one not in OF_TYPE:
            raise RequestError(f"{path}/type: got {shown(one)}; accepted: {', '.join(OF_TYPE)}")
    enforced = frozenset().union(*(OF_TYPE[one] for one in listed)) | {"type"}
    known = sorted(frozenset().union(*OF_TYPE.values(), _CHOICES))
    for name in assertions:
        if name in enforced:
            continue
        if name in known:
            _refuse(path, name, f"is not enforced with type {types!r}" if types else "is not enforced without a 'type'")
        _refuse(path, name, f"is not enforced{'' if name in NEVER_ENFORCED else nearest(name, known)}")
    for first, others in APART:
        for other in sorted(others & node.keys()):
            if first in node and not (other == "additionalProperties" and node[other] is False):
                _refuse(path, other, f"is not enforced beside {first!r}")
    if "string" in listed:
        _check_string(node, path)
    if "object" in listed:
        _check_object(node, path)


def _check_values(node: dict[str, Any], chosen: str, path: str) -> None:
    """The values of const or enum must have the type beside them, since only the values are enforced."""
    values = node["enum"] if chosen == "enum" else [node["const"]]
    types = node["type"] if isinstance(node["type"], list) else [node["type"]]
    for value in values if isinstance(values, list) else []:
        if not set(_TYPE_OF_VALUE[type(value)]) & {one for one in types if isinstance(one, str)}:
            _refuse(path, "type", f"is not enforced beside {chosen!r}, whose value {shown(value)} has another type")


def _check_string(node: dict[str, Any], path: str) -> None:
    if "format" in node and node["format"] not in FORMATS:
        raise RequestError(f"{path}/format: got {shown(node['format'])}; enforced: {', '.join(sorted(FORMATS))}")
    if "pattern" in node:
        _check_pattern(node["pattern"], f"{path}/pattern")


def _check_object(node: dict[str, Any], path: str) -> None:
    for name in ("properties", "patternProperties"):
        if not isinstance(node.get(name, {}), dict):
            raise RequestError(f"{path}/{name}: got {shown(node[name])}; accepted: an object")
    declared = node.get("properties", {})
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(one, str) for one in required):
        raise RequestError(f"{path}/required: got {shown(required)}; accepted: a list of strings")
    for one in required:
        if one not in declared:
            _refuse(path, "required", f"is enforced for declared properties only, and {one!r} is none")
    if declared and node.get("additionalProperties", False) is not False:
        # The compiler tells names apart as they are written, and a name may be written with escapes.
        _refuse(path, "additionalProperties", "is enforced beside 'properties' for false only")
    open_names = node.get("additionalProperties", False) is not False or "propertyNames" in node
    if "minProperties" in node and (open_names or "patternProperties" in node):
        _refuse(
            path, "minProperties", "is enforced where all properties are declared only, since others may be repeated"
        )
    for pattern in node.get("patternProperties", {}):
        _check_pattern(pattern, f"{path}/patternProperties")


def _check_pattern(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str):
        raise RequestError(f"{path}: got {shown(pattern)}; accepted: a string")
    try:
        checked_pattern(pattern, in_json=True)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def _children(node: dict[str, Any], path: str) -> list[tuple[str, Any]]:
    """The subschemas of a node, each with its place below it."""
    found: list[tuple[str, Any]] = []
    for name in ("properties", "patternProperties", "$defs", "definitions"):
        within = node.get(name, {})
        if not isinstance(within, Mapping):
            raise RequestError(f"{path}/{name}: got {shown(within)}; accepted: an object")
        found.extend((f"{name}/{key}", child) for key, child in within.items())
    for name in ("prefixItems", "anyOf", "oneOf", "allOf"):
        within = node.get(name, [])
        if not isinstance(within, list):
            raise RequestError(f"{path}/{name}: got {shown(within)}; accepted: a list")
        found.extend((f"{name}/{index}", child) for index, child in enumerate(within))
    found.extend((name, node[name]) for name in ("items", "additionalProperties") if name in node)
    names = node.get("propertyNames", True)
    if isinstance(names, dict) and not any(name in names for name in _CHOICES):
        names = {"type": "string", **names}
    found.append(("propertyNames", names))
    return found


def _refuse(path: str, keyword: str, why: str) -> None:
    raise RequestError(f"{path}: the keyword {keyword!r} {why}")
