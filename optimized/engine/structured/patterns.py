"""Regular expressions at the door: what would take unbounded time or memory is refused before anything compiles it.

Knows the syntax of a pattern; knows nothing about JSON schemas around it or about the compiler, which refuses the rest
(lookaround, backreferences, flags). Costs of nested quantifiers: measured with xgrammar 0.2.8, where `(a*a*)*b` takes
0.12 s a token after 100 tokens and `(a{0,50}){0,50}b` 0.7 s after 20.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from reference.spec.errors import RequestError

MAX_PATTERN_LENGTH = 2048
MAX_GROUP_DEPTH = 32
MAX_PATTERN_SIZE = 20_000

_QUANTIFIER = re.compile(r"\*|\+|\?|\{(\d{1,9})(?:(,)(\d{0,9}))?\}")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "b": "\b"}
_CLASS_ESCAPES = "wWdDsSpPbB"


@dataclass(frozen=True)
class _Atom:
    """nullable: matches "". varies: may be one run of any length, so that repeating it is ambiguous. size: of its
    expansion. ambiguous: repeating it is refused."""

    nullable: bool = False
    varies: bool = False
    size: int = 1
    ambiguous: bool = False


@dataclass
class _Group:
    """An open group: the finished branches, and the counts of the one being read."""

    branches: list[_Atom] = field(default_factory=list)
    mandatory: int = 0
    varying: int = 0
    size: int = 0

    def add(self, atom: _Atom) -> None:
        """The branch's next atom."""
        self.mandatory += not atom.nullable
        self.varying += not atom.nullable and atom.varies
        self.size += atom.size

    def end_branch(self) -> None:
        """A `|` or the group's end. What repeats one run, or nothing at all, can be split in many ways."""
        single = self.mandatory == 1 and self.varying == 1
        empty = self.mandatory == 0
        self.branches.append(_Atom(empty, single, self.size, single or empty))
        self.mandatory = self.varying = self.size = 0

    def atom(self) -> _Atom:
        """The group as one atom of the branch around it."""
        self.end_branch()
        return _Atom(
            any(one.nullable for one in self.branches),
            any(one.varies for one in self.branches),
            sum(one.size for one in self.branches) + 1,
            any(one.ambiguous for one in self.branches),
        )


def checked_pattern(pattern: str, *, in_json: bool = False) -> str:
    """The pattern as the compiler gets it: a `.` matches no newline, as in Python.

    Args:
        in_json: it is matched inside a JSON string, where the compiler takes literals as they are, so that one that
            JSON must escape would break the text.
    Raises:
        RequestError: too long, too deep, too large when its repetitions are written out, a group repeated that can be
            split in many ways, or a literal that JSON must escape.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise RequestError(f"a pattern of {len(pattern)} characters; accepted: at most {MAX_PATTERN_LENGTH}")
    stack = [_Group()]
    kept: list[str] = []
    place = 0
    while place < len(pattern):
        char = pattern[place]
        atom: _Atom | None = _Atom()
        end = place + 1
        text = None
        if char == "(":
            if len(stack) > MAX_GROUP_DEPTH:
                raise RequestError(f"a pattern with groups nested deeper than {MAX_GROUP_DEPTH}")
            stack.append(_Group())
            end += 2 if pattern.startswith("?:", end) else 0
            atom = None
        elif char == ")" and len(stack) > 1:
            atom = stack.pop().atom()
        elif char == "|":
            stack[-1].end_branch()
            atom = None
        elif char in "^$":
            atom = None
        elif char == "[":
            end = _class_end(pattern, place)
        elif char == ".":
            text = "[^\\n]"
        else:
            end = _literal_end(pattern, place, in_json)
        if atom is not None:
            quantified, stop = _quantified(pattern, end, atom)
            stack[-1].add(quantified)
            kept.append((text or pattern[place:end]) + pattern[end:stop])
            end = stop
        else:
            kept.append(pattern[place:end])
        if sum(group.size for group in stack) > MAX_PATTERN_SIZE:
            raise RequestError(f"a pattern of more than {MAX_PATTERN_SIZE} elements, repetitions written out")
        place = end
    return "".join(kept)


def _quantified(pattern: str, place: int, atom: _Atom) -> tuple[_Atom, int]:
    """An atom with the quantifier that follows it, if one does, and where it ends."""
    found = _QUANTIFIER.match(pattern, place)
    if found is None:
        return atom, place
    symbol = found.group()[0]
    if symbol == "{":
        low = int(found.group(1))
        high = low if found.group(2) is None else int(found.group(3)) if found.group(3) else None
    else:
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
    if atom.ambiguous and (high is None or high > 1):
        raise RequestError(
            f"nested quantifiers up to {pattern[max(0, found.end() - 20) : found.end()]!r}: a repeated group needs two "
            "parts, or one of fixed length, in each of its branches, or matching takes unbounded time"
        )
    size = atom.size * max(low, high or 1, 1)
    return _Atom(low == 0 or atom.nullable, atom.varies or low != high, size, False), found.end()


def _class_end(pattern: str, place: int) -> int:
    """Where the class that begins at `place` ends; the pattern's end if it is not closed."""
    at = place + 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return min(at + 1, len(pattern))


def _literal_end(pattern: str, place: int, in_json: bool) -> int:
    """Where the literal or escape at `place` ends."""
    code = _CODE.match(pattern, place)
    end, literal = place + 1, pattern[place]
    if code is not None:
        end, literal = code.end(), chr(min(int(next(filter(None, code.groups())), 16), 0x10FFFF))
    elif literal == "\\" and end < len(pattern):
        escaped = pattern[end]
        end, literal = end + 1, "" if escaped in _CLASS_ESCAPES else _CONTROL.get(escaped, escaped)
    if in_json and literal and (literal in '"\\' or literal < " "):
        raise RequestError(f"a pattern with the literal {literal!r}, which a JSON string must escape")
    return end
