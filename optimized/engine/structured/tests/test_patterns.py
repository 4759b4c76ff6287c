"""Patterns that may take unbounded time are refused; ordinary ones are not, and mean what they mean in Python."""

from __future__ import annotations

import contextlib
import re
import time

import pytest
import xgrammar

from optimized.engine.structured.language import Language
from optimized.engine.structured.patterns import checked_pattern
from optimized.engine.structured.tests.test_json_schema_keywords import tokens
from reference.spec.errors import RequestError

pytestmark = pytest.mark.ci

ORDINARY = {
    r"[a-z]+(\.[a-z]+)*": "ab.c.d",
    r"(\d{3}-)+\d": "123-456-7",
    r"(foo|bar)*": "foobar",
    r"(\w+\s+)*end": "a b end",
    r"(a|aa)+b": "aaaab",
    r"[^\]\\]{2,5}": "ab!",
    r"(?:yes|no)?": "",
    r"a.b": "a.b",
    r"\x41\u00e9": "Aé",
    r"((a+)b)*": "aabab",
}
CATASTROPHIC = [
    "(a*)*",
    "(a+)+b",
    "((a*)*)*b",
    "(a*a*)*b",
    "([a-z]+\\s?)*b",
    "(a{0,50}){0,50}b",
    "(a|b+)*",
    "((a+))*",
    "(a?){50}",
    "()*",
    "(|a)+",
    "(a{1,9}){3}",
    "((a|b)+c?)*",
]


@pytest.mark.parametrize("pattern", ORDINARY)
def test_an_ordinary_pattern_matches_what_it_matches_in_python(pattern: str) -> None:
    language = Language.of({"schema_type": "regex", "schema": pattern})
    compiled = xgrammar.GrammarCompiler(tokens(), max_threads=1).compile_regex(language.text)
    for text in (ORDINARY[pattern], "", "b", "a\nb", ORDINARY[pattern] + "!"):
        matcher = xgrammar.GrammarMatcher(compiled)
        in_language = (not text or matcher.accept_string(text)) and matcher.is_completed()
        assert in_language == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", CATASTROPHIC)
def test_a_group_that_can_be_split_in_many_ways_is_not_repeated(pattern: str) -> None:
    with pytest.raises(RequestError, match="nested quantifiers up to"):
        checked_pattern(pattern)


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("a" * 2049, "2049 characters"),
        ("(" * 40 + "a" + ")" * 40, "deeper than 32"),
        ("((a{100}){100}){100}", "more than 20000 elements"),
        ("a{999999999}", "more than 20000 elements"),
    ],
)
def test_size_depth_and_repetitions_are_capped(pattern: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        checked_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[", "[^", "\\", "a{", "a{2", "(?", "(?=a)", "*", "a**", "{", "|", "^$", "[\\"]
)
def test_a_broken_pattern_is_left_to_the_compiler(pattern: str) -> None:
    assert isinstance(checked_pattern(pattern), str)


def test_checking_the_longest_pattern_takes_no_time() -> None:
    began = time.process_time()
    for unit in ("(a|", "[a", "a{1,2}", "\\", "((", ".*"):
        with contextlib.suppress(RequestError):
            checked_pattern((unit * 2048)[:2048])
    assert time.process_time() - began < 2
