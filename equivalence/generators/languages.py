"""Random formal languages, written as regular expression or as EBNF, and whether a text is in one of them.

Knows its own trees of nodes; knows nothing about xgrammar, tokens or `re`, so that it can judge all three. A language
is JSON: {"root": node, "a": node, ...}. A node is a literal (text), {"class": "a-c0"} (one character), {"seq": nodes},
{"alt": nodes}, {"many": node, "least": m, "most": n or None} or {"rule": name}.
"""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

Node = Any
Rules = dict[str, Node]

ALPHABET = "abc01 -,"
"""What the texts are made of; few characters, so that drafts of an untrained model are kept now and then."""

_CLASSES = ("a-c", "01", "ab0", "a", "a-c01")


def draw_regular(rng: random.Random) -> Rules:
    """A language without rules, whose pattern the engine takes: what repeats is one character or a fixed text."""
    return {"root": _alternatives(rng, ())}


def draw_context_free(rng: random.Random) -> Rules:
    """A language of three rules that call each other and themselves, each call after a literal."""
    return {
        "root": _alternatives(rng, ("root", "a", "b")),
        "a": _alternatives(rng, ("a", "b")),
        "b": _alternatives(rng, ()),
    }


def _alternatives(rng: random.Random, rules: tuple[str, ...]) -> Node:
    """One to three sequences; the first calls no rule, so that every text can be brought to its end."""
    return {"alt": [_sequence(rng, rules if place else ()) for place in range(rng.choice((1, 2, 2, 3)))]}


def _sequence(rng: random.Random, rules: tuple[str, ...]) -> Node:
    items: list[Node] = []
    for _ in range(rng.choice((1, 2, 3))):
        if rules and rng.random() < 0.5:
            items += [_literal(rng), {"rule": rng.choice(rules)}]
        else:
            items.append(_item(rng))
    return {"seq": items}


def _item(rng: random.Random) -> Node:
    kind = rng.random()
    if kind < 0.4:
        return _literal(rng)
    one = {"class": rng.choice(_CLASSES)}
    if kind < 0.6:
        return one
    repeated = rng.choice((one, _literal(rng), {"seq": [_literal(rng), one]}))
    least = rng.choice((0, 0, 1, 2))
    return {"many": repeated, "least": least, "most": rng.choice((None, least + 1, least + 3))}


def _literal(rng: random.Random) -> str:
    return "".join(rng.choice(ALPHABET) for _ in range(rng.choice((1, 1, 2, 3))))


def to_pattern(rules: Rules) -> str:
    """A language without rules as a regular expression."""
    return _pattern(rules["root"])


def _pattern(node: Node) -> str:
    if isinstance(node, str):
        return re.sub(r"[][.^$*+?(){}|\\]", r"\\\g<0>", node)
    if "class" in node:
        return f"[{node['class']}]"
    if "seq" in node:
        return "".join(f"(?:{_pattern(one)})" if "alt" in one else _pattern(one) for one in node["seq"])
    if "alt" in node:
        return "|".join(map(_pattern, node["alt"]))
    inner = _pattern(node["many"])
    single = "class" in node["many"] or node["many"] in tuple(ALPHABET)
    return (inner if single else f"(?:{inner})") + _quantifier(node)


def to_ebnf(rules: Rules) -> str:
    """A language in the EBNF that the engine takes."""
    return "\n".join(f"{name} ::= {_ebnf(node)}" for name, node in rules.items())


def _ebnf(node: Node) -> str:
    if isinstance(node, str):
        return json.dumps(node)
    if "class" in node:
        return f"[{node['class']}]"
    if "rule" in node:
        return str(node["rule"])
    if "seq" in node:
        return " ".join(map(_ebnf, node["seq"]))
    if "alt" in node:
        return "(" + " | ".join(map(_ebnf, node["alt"])) + ")"
    return f"({_ebnf(node['many'])}){_quantifier(node)}"


def _quantifier(node: Node) -> str:
    least, most = node["least"], node["most"]
    if most is None:
        return ("*", "+", "{2,}")[least]
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"


def contains(rules: Rules, text: str) -> bool:
    """Whether a text is in a language."""
    return len(text) in _Reading(rules, text).ends("root", 0)


def begins(rules: Rules, text: str) -> bool:
    """Whether a text is in a language, or can be carried on to one that is."""
    reading = _Reading(rules, text)
    return len(text) in reading.ends("root", 0) or reading.hungry


class _Reading:
    """Where the parts of a language can end in one text. hungry: a part wanted more where the text ended."""

    def __init__(self, rules: Rules, text: str) -> None:
        self._rules = rules
        self._text = text
        self.hungry = False
        self.ends = functools.cache(self._ends)

    def _ends(self, rule: str, start: int) -> frozenset[int]:
        return frozenset(self._of(self._rules[rule], start))

    def _of(self, node: Node, start: int) -> set[int]:
        if isinstance(node, str):
            self.hungry |= len(node) > len(self._text) - start and node.startswith(self._text[start:])
            return {start + len(node)} if self._text.startswith(node, start) else set()
        if "class" in node:
            self.hungry |= start == len(self._text)
            return {start + 1} if re.match(f"[{node['class']}]", self._text[start:]) else set()
        if "rule" in node:
            return set(self.ends(node["rule"], start))
        if "alt" in node:
            return set().union(*(self._of(one, start) for one in node["alt"]))
        if "seq" in node:
            places = {start}
            for one in node["seq"]:
                places = set().union(*(self._of(one, place) for place in places))
            return places
        return self._repeated(node, start)

    def _repeated(self, node: Node, start: int) -> set[int]:
        most = len(self._text) + 1 if node["most"] is None else node["most"]
        places, found = {start}, set[int]() if node["least"] else {start}
        for count in range(1, most + 1):
            places = set().union(*(self._of(node["many"], place) for place in places))
            if not places:
                break
            if count >= node["least"]:
                found |= places
        return found
