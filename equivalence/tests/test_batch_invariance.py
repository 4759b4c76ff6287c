"""A request's bits stand in every circumstance, and the circumstances are what they claim to be."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any, cast

import pytest

from equivalence.cases import Case, Options, derived_seed
from equivalence.checks import batch_invariance
from equivalence.checks.batch_invariance import lengths, plans
from equivalence.findings import Findings
from equivalence.generators import probes
from equivalence.generators.released import released_ratios
from reference.spec import ModelConfig

pytestmark = pytest.mark.ci

KINDS = list(batch_invariance.KINDS)


@pytest.mark.parametrize("number", range(24, 24 + len(KINDS)))
def test_a_probe_gives_the_same_bits(number: int) -> None:
    findings = batch_invariance.run(batch_invariance.one_case(0, number), Options())
    assert findings.differences == []
    assert findings.comparisons > 0
    assert findings.not_compared == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(36, 36 + len(KINDS)))
def test_a_probe_of_the_bundled_model_gives_the_same_bits(number: int) -> None:
    assert batch_invariance.run(batch_invariance.one_case(0, number), Options()).differences == []


def test_a_case_is_whole_in_its_parameters() -> None:
    for case in batch_invariance.cases(Options(cases=len(KINDS))):
        assert json.loads(json.dumps(case.params)) == case.params
    assert [case.name.split("-", 2)[2] for case in batch_invariance.cases(Options(cases=len(KINDS)))] == KINDS


def test_a_run_takes_every_length_in_chunks_of_every_size_on_three_models() -> None:
    taken: dict[str, set[tuple[int, int]]] = {}
    configs = {}
    cases = (batch_invariance.one_case(7, number) for number in range(len(KINDS) - 1, 10_000, len(KINDS)))
    for case in itertools.islice(cases, 90):
        params = cast("dict[str, Any]", case.params)
        model = json.dumps(params["config"])
        configs[model] = ModelConfig.from_dict(params["config"])
        taken.setdefault(model, set()).update((length, params["chunk"]) for length in params["lengths"])
    every = set(itertools.product(range(1, 301), (1, 3, 5, 16, 31, 128)))
    assert list(taken.values()) == [every, every, every]
    first, _, released = configs.values()
    assert {1, 2} <= {first.compress_ratios[layer] for layer in first.kv_source_layer_ids}
    assert released.n_routed_experts == 384


def test_a_fork_that_has_not_all_of_its_origin_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(stage: plans.Stage, origin: plans.Tenant) -> plans.Tenant:
        made = fork(stage, origin)
        for ring in stage.caches.rings:
            ring.codes.view(plans.NUM_SLOTS, -1)[made.slot] = 0
        return made

    case = batch_invariance.one_case(0, 2 * len(KINDS) - 1)
    shorter = Case(case.check, case.name, {**case.params, "lengths": [4, 10, 11]})
    assert batch_invariance.run(shorter, Options()).differences == []
    fork = lengths.fork
    monkeypatch.setattr(lengths, "fork", forget)
    assert {found.item.split(",")[0] for found in batch_invariance.run(shorter, Options()).differences} == {
        "prompt of 4 in chunks of 3",
        "prompt of 10 in chunks of 3",
        "prompt of 11 in chunks of 3",
    }
    assert batch_invariance.shrink(shorter, Options()).params["lengths"] == [4]


def test_lengths_lie_on_both_sides_of_every_limit() -> None:
    limits = (64, 128)
    drawn = {probes.prompt_length(random.Random(derived_seed("length", n)), limits) for n in range(2000)}
    assert min(drawn) == 1
    assert max(drawn) == probes.LONGEST
    for limit in limits:
        assert {limit - 1, limit, limit + 1} <= drawn


def test_the_models_of_a_run_have_both_ratios_and_the_released_numbers() -> None:
    models = [probes.draw_model(0, number) for number in range(48)]
    assert {"tiny", "released", "random"} == {model.name for model in models}
    assert {1, 2} <= {ratio for model in models for ratio in model.ratios}
    config = released_ratios()
    assert (config.n_routed_experts, config.num_experts_per_tok, config.num_attention_heads) == (384, 6, 64)
    assert (config.head_dim, config.index_topk, config.sliding_window) == (512, 512, 128)


def test_a_plan_lays_requests_end_to_end() -> None:
    first, second = plans.Tenant([5, 6, 7], 2, [4], 1, False), plans.Tenant([8, 9], 1, [3, 6])
    plan = plans.make_plan("prefill", [first, second], [2, 1])
    assert plan.query_start.tolist() == [0, 2, 3]
    assert (plan.tokens.tolist(), plan.positions.tolist()) == ([6, 7, 8], [1, 2, 0])
    assert plan.page_table.tolist() == [[4, 0], [3, 6]]
    assert (plan.kv_lens.tolist(), plan.sample_rows.tolist()) == ([3, 1], [1, 2])
    assert plan.fresh.tolist() == [False, True]


def test_a_failing_case_loses_the_companions_that_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(one for one in batch_invariance.cases(Options()) if len(one.params.get("after", ())) > 1)  # type: ignore[arg-type]
    culprit = case.params["after"][1]  # type: ignore[index]

    def run(case: Case, options: Options) -> Findings:
        findings = Findings()
        if culprit in case.params["after"]:  # type: ignore[operator]
            findings.differ("probe", "values", "differs")
        return findings

    monkeypatch.setattr(batch_invariance, "run", run)
    smaller = batch_invariance.shrink(case, Options()).params
    assert (smaller["before"], smaller["after"]) == ([], [culprit])
