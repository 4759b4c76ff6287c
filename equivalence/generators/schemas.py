"""Random JSON schemas of what the engine enforces: every type, with bounds small enough for short texts to end.

Knows which keywords may stand beside which (README, structured output); knows nothing about texts or compilers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

NAMES = ("a", "b", "ab", "k1")

_VALUES = (None, True, 0, -7, 1.5, "", "ab", [1], {"a": None})

_PATTERNS = ("^[abc]{1,3}$", "^(ab|c)[01]+$", "[abc]", "^a?b*$")


def draw_schema(rng: random.Random) -> Schema:
    """A schema of at most three levels; one in eight calls itself.

    Its keys are sorted, as those of a stored case are: properties come in the order in which they stand.
    """
    return json.loads(json.dumps(_root(rng), sort_keys=True))


def _root(rng: random.Random) -> Schema:
    if rng.random() < 1 / 8:
        more = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
        node = {"anyOf": [_leaf(rng), more]}
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}
    return _schema(rng, 2)


def _schema(rng: random.Random, depth: int) -> Schema:
    if depth == 0 or rng.random() < 0.25:
        return _leaf(rng)
    return rng.choice((_object, _object, _array, _any_of))(rng, depth)


def _leaf(rng: random.Random) -> Schema:
    leaves: tuple[Callable[[random.Random], Schema], ...] = (_string, _string, _integer, _number, _plain, _values)
    return rng.choice(leaves)(rng)


def _plain(rng: random.Random) -> Schema:
    return {"type": rng.choice(("null", "boolean", ["null", "boolean"], ["integer", "null"]))}


def _values(rng: random.Random) -> Schema:
    return {"const": rng.choice(_VALUES)} if rng.random() < 0.3 else {"enum": rng.sample(_VALUES, rng.randint(1, 4))}


def _string(rng: random.Random) -> Schema:
    kind = rng.random()
    if kind < 0.3:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind < 0.4:
        return {"type": "string", "format": "uuid"}
    least = rng.choice((0, 0, 1, 3))
    return {"type": "string", "minLength": least, "maxLength": least + rng.choice((0, 1, 4))}


def _integer(rng: random.Random) -> Schema:
    low = rng.choice((-100, -5, 0, 1, 10))
    bounds = {rng.choice(("minimum", "exclusiveMinimum")): low, "maximum": low + rng.choice((1, 9, 250))}
    return {"type": "integer", **(bounds if rng.random() < 0.7 else {})}


def _number(rng: random.Random) -> Schema:
    return {"type": "number", "minimum": rng.choice((-2, 0, 1)), "maximum": rng.choice((3, 10, 99))}


def _array(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.25:
        return {"type": "array", "prefixItems": [_schema(rng, depth - 1) for _ in range(rng.randint(1, 2))]}
    least = rng.choice((0, 0, 1))
    return {
        "type": "array",
        "items": _schema(rng, depth - 1),
        "minItems": least,
        "maxItems": least + rng.choice((0, 1, 2)),
    }


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.choice((1, 2, 3)))
    schema: Schema = {
        "type": "object",
        "properties": {name: _schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
