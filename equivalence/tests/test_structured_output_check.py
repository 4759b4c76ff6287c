"""Structured texts are judged by others than the compiler, and what is wrong with one is noticed."""

from __future__ import annotations

import json
import random
import re

import pytest

from equivalence.cases import Case, Options, derived_seed
from equivalence.checks import structured_output
from equivalence.checks.structured_output import crowd, judge
from equivalence.findings import Findings
from equivalence.generators import languages, schemas, structured
from optimized.engine.structured.language import Language
from reference.spec import CompletionOutput
from reference.spec.errors import RequestError

pytestmark = pytest.mark.ci

NUMBERS = (0, 5, 10, 15)
"""A case of every kind, each with another number of drafts."""


@pytest.mark.parametrize("number", NUMBERS)
def test_texts_stay_in_their_language(number: int) -> None:
    findings = structured_output.run(structured_output.one_case(0, number), Options())
    assert findings.differences == []
    assert findings.comparisons > 10


@pytest.mark.slow
def test_hostile_grammars_delay_nobody() -> None:
    findings = crowd.run(Findings(), "cpu")
    assert findings.differences == []
    assert findings.comparisons > crowd.GRAMMARS


def test_a_case_is_whole_in_its_parameters() -> None:
    made = list(structured_output.cases(Options(cases=16)))
    assert made[0].name == "hostile"
    for case in made:
        assert json.loads(json.dumps(case.params, sort_keys=True)) == case.params
    assert {case.name.split("-", 1)[1] for case in made[1:]} == {
        f"{kind}-{nextn}" for kind in ("batch", "scarce", "chunked", "aborted") for nextn in (0, 1, 3, 5)
    }


def random_text(rng: random.Random) -> str:
    return "".join(rng.choice(languages.ALPHABET) for _ in range(rng.randint(0, 5)))


def test_the_recogniser_agrees_with_full_match(seed: int) -> None:
    rng, inside = random.Random(seed), 0
    for _ in range(300):
        rules = languages.draw_regular(rng)
        pattern = languages.to_pattern(rules)
        for text in [random_text(rng) for _ in range(20)]:
            found = languages.contains(rules, text)
            assert found == bool(re.fullmatch(pattern, text)), (pattern, text)
            inside += found
            if found:
                assert all(languages.begins(rules, text[:end]) for end in range(len(text) + 1))
    assert inside > 100


def test_the_recogniser_follows_rules_into_themselves() -> None:
    pairs = {"root": {"alt": [{"seq": ["a", {"rule": "root"}, "b"]}, "c"]}}
    assert languages.to_ebnf(pairs) == 'root ::= ("a" root "b" | "c")'
    assert [languages.contains(pairs, text) for text in ("c", "aacbb", "aacb", "", "acbb")] == [True, True] + [
        False
    ] * 3
    assert [languages.begins(pairs, text) for text in ("", "aa", "aacb", "b", "acbb")] == [True] * 3 + [False] * 2


def test_good_grammars_pass_the_door_and_hostile_ones_are_known() -> None:
    for number in range(50):
        rng = random.Random(derived_seed("door", number))
        for kind in structured.KINDS:
            Language.of(structured.draw_request(rng, 384, kind)["params"]["so_args"])
        Language.of({"schema_type": "json", "schema": schemas.draw_schema(rng)})
    refused = 0
    for so_args in structured.hostile():
        try:
            Language.of(so_args)
        except RequestError:
            refused += 1
    assert refused > 20


REQUESTS = {
    "json": {"schema_type": "json", "schema": {"type": "array", "items": {"type": "integer"}}},
    "regex": {"schema_type": "regex", "schema": "ab+"},
    "choice": {"schema_type": "choice", "schema": ["yes", "no"]},
}
RULES = {"root": {"seq": ["a", {"many": "b", "least": 1, "most": None}]}}


@pytest.mark.parametrize(
    ("kind", "text", "reason", "stop_reason", "error", "good"),
    [
        ("json", "[1]", "stop", None, None, True),
        ("json", "[1", "stop", None, None, False),
        ("json", '["1"]', "stop", 7, None, False),
        ("regex", "abb", "stop", None, None, True),
        ("regex", "a", "stop", None, None, False),
        ("regex", "a", "length", None, None, True),
        ("regex", "a", "stop", "b", None, True),
        ("regex", "b", "abort", None, None, False),
        ("choice", "ye", "length", None, None, True),
        ("choice", "ye", "stop", None, None, False),
        ("choice", "x", "length", None, None, False),
        ("choice", "ye", "error", None, "request 3: a dead end: …", True),
        ("choice", "yes", "error", None, "request 3: a dead end: …", False),
        ("choice", "ye", "error", None, "request 3: the grammar refuses token 5", False),
    ],
)
def test_a_wrong_text_is_noticed(
    kind: str, text: str, reason: str, stop_reason: int | str | None, error: str | None, good: bool
) -> None:
    request = {"prompt": [5], "params": {"so_args": REQUESTS[kind]}, "rules": RULES}
    made = CompletionOutput(0, text, [5], finish_reason=reason, stop_reason=stop_reason, error=error)  # type: ignore[arg-type]
    assert (judge.complaint(request, made) == "") is good


def test_a_failing_case_loses_the_requests_that_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = structured_output.one_case(0, 0)
    culprit = case.params["places"][1]  # type: ignore[index]

    def run(case: Case, options: Options) -> Findings:
        findings = Findings()
        if culprit in case.params["places"]:  # type: ignore[operator]
            findings.differ("request", "values", "differs")
        return findings

    monkeypatch.setattr(structured_output, "run", run)
    assert structured_output.shrink(case, Options()).params["places"] == [culprit]
