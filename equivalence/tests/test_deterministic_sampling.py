"""A seed gives one text in every circumstance, and blocks that stray from the reference's are noticed."""

from __future__ import annotations

import json
import random

import pytest

from equivalence.cases import Options
from equivalence.checks import deterministic_sampling, speculated
from equivalence.checks.deterministic_sampling import blocks, expected
from equivalence.findings import Findings
from equivalence.generators import batches, drafting, speculation
from optimized.engine.sequence import Proposal
from reference.spec import CompletionOutput, RequestOutput
from reference.speculation import Block

pytestmark = pytest.mark.ci

NUMBERS = (2, 7, 8, 12, 19, 25, 30, 31)
"""Cases of every kind but one, with every number of drafts."""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_seed_gives_one_text(number: int) -> None:
    findings = deterministic_sampling.run(deterministic_sampling.one_case(0, number), Options())
    assert findings.differences == []
    assert findings.comparisons > 0


def test_a_case_is_whole_in_its_parameters() -> None:
    made = list(deterministic_sampling.cases(Options(cases=32)))
    for case in made:
        assert json.loads(json.dumps(case.params, sort_keys=True)) == case.params
    assert {case.name.split("-")[2] for case in made} == {str(nextn) for nextn in speculation.NEXTN}
    engines = [case.params["engine"] for case in made]
    for name, values in {"verification_lengths": 2, "async_scheduling": 2, "penalised_residual": 2}.items():
        assert len({engine.get(name) for engine in engines} - {None}) == values  # type: ignore[union-attr]


def test_drafts_are_kept_and_refused_under_both_rules() -> None:
    for rule in ("coupled", "ratio"):
        model = drafting.draw_model(0, 0)
        requests = deterministic_sampling.draw_requests(random.Random(0), model.vocabulary)
        llm = speculated.engine(model.params, "cpu", nextn=3, verification=rule, **speculation.wide(8))
        batches.ask(llm, requests)
        assert 0.05 < llm.statistics.acceptance.rho < 0.95


def test_what_decides_a_text() -> None:
    greedy, drawn = ({"prompt": [5], "params": {"temperature": heat}} for heat in (0.0, 1.0))
    ratio = {"nextn": 3, "verification": "ratio", "penalised_residual": False, "verification_lengths": "fixed"}
    assert expected.rule_of(drawn, {"nextn": 5, "verification_lengths": "scheduled"}) == {}
    assert expected.rule_of(greedy, ratio) == {}
    assert expected.rule_of(drawn, {**ratio, "poison_unused": True}) == ratio
    assert expected.rule_of(drawn, {**ratio, "verification_lengths": "scheduled"}) is None


@pytest.mark.parametrize(
    ("tokens", "survival", "differences"),
    [((4, 5, 9), (0.5, 0.25, 0.9), 0), ((4, 6, 9), (0.5, 0.25, 0.1), 1), ((4, 5, 9), (0.5, 0.3, 0.1), 1)],
)
def test_a_block_that_strays_is_noticed(tokens: tuple[int, ...], survival: tuple[float, ...], differences: int) -> None:
    findings = Findings()
    watch = blocks.BlockWatch(findings, ())
    watch.offered["0", 0].append(Proposal(tokens, survival, 1))
    output = RequestOutput("0", None, [5], [CompletionOutput(0, "", [4, 5])], finished=True)
    theirs = [Block(0, [4, 5], [0.0, 0.0, 3.0], 2, 3, False)]
    blocks.compare(findings, "request 0", watch, output, theirs)
    assert len(findings.differences) == differences
    blocks.compare(findings, "request 0", watch, output, theirs * 2)
    assert len(findings.differences) == 2 * differences + 1


def test_samples_that_are_alike_are_noticed() -> None:
    def output(number: str, *ids: int) -> RequestOutput:
        made = [CompletionOutput(index, "", [token]) for index, token in enumerate(ids)]
        return RequestOutput(number, None, [5], made, finished=True)

    findings = Findings()
    deterministic_sampling._compare_samples(findings, [output("0", 1, 2), output("1", 3, 2)])
    assert [difference.item for difference in findings.differences] == ["request 1, completion 1"]
