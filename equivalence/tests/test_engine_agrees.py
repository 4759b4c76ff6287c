"""The engine's outputs equal the reference's, and an altered one is noticed wherever it is altered."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from equivalence import outputs
from equivalence.cases import Case, Options
from equivalence.checks.model import engine
from equivalence.findings import Findings
from equivalence.generators import batches, checkpoints
from equivalence.generators.configs import random_config
from equivalence.tolerances import of_backend
from reference.generate import generate
from reference.model import ReferenceModel
from reference.spec import CompletionOutput, Logprob, SamplingParams


@pytest.mark.ci
@pytest.mark.parametrize("number", [0, 1])
def test_batches_agree_bit_for_bit(number: int) -> None:
    findings = engine.run(engine.one_case(1, number), Options())
    assert findings.differences == []
    assert findings.comparisons > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2, 8))
def test_more_batches_agree_bit_for_bit(number: int) -> None:
    assert engine.run(engine.one_case(1, number), Options()).differences == []


ALTERED: dict[str, Any] = {
    "token_ids": [3, 5],
    "logprobs": [{3: Logprob(-0.5, 1)}, {4: Logprob(-0.25000003, 1)}],
    "cumulative_logprob": -0.7500001,
    "text": "abd",
    "finish_reason": "stop",
    "stop_reason": 4,
}


WANTED = CompletionOutput(0, "abc", [3, 4], -0.75, [{3: Logprob(-0.5, 1)}, {4: Logprob(-0.25, 1)}], "length")


@pytest.mark.ci
@pytest.mark.parametrize("row", ["exact", "cuda.logprobs"])
@pytest.mark.parametrize("field", ALTERED)
def test_an_altered_output_is_noticed(field: str, row: str) -> None:
    assert outputs.first_difference(WANTED, WANTED, row) == ""
    assert outputs.first_difference(dataclasses.replace(WANTED, **{field: ALTERED[field]}), WANTED, row)


@pytest.mark.ci
@pytest.mark.parametrize("row", ["exact", "cuda.logprobs"])
@pytest.mark.parametrize("field", ["logprobs", "cumulative_logprob"])
def test_nan_agrees_with_nothing(field: str, row: str) -> None:
    nan = float("nan")
    value: Any = nan if field == "cumulative_logprob" else [{3: Logprob(nan, 1)}, {4: Logprob(-0.25, 1)}]
    both = dataclasses.replace(WANTED, **{field: value})
    assert "nan" in outputs.first_difference(both, both, row)


@pytest.mark.ci
@pytest.mark.parametrize("field", ["logprobs", "cumulative_logprob"])
def test_signed_zeros_have_other_bits(field: str) -> None:
    """Equal numbers: they differ in bits, and are near under any other row."""
    values: list[Any] = [0.0, -0.0]
    if field == "logprobs":
        values = [[{3: Logprob(zero, 1)}] for zero in values]
    one, other = (dataclasses.replace(WANTED, **{field: value}) for value in values)
    assert outputs.first_difference(one, other)
    assert outputs.first_difference(one, other, "cuda.logprobs") == ""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("logprobs", "total", "near"),
    [
        ([{3: Logprob(-0.5 - 9e-13, 1)}, {4: Logprob(-0.25 - 9e-13, 1)}], -0.75 - 1.8e-12, True),
        ([{3: Logprob(-0.5 - 2e-12, 1)}, {4: Logprob(-0.25, 1)}], -0.75, False),
        ([{3: Logprob(-0.5, 2)}, {4: Logprob(-0.25, 1)}], -0.75, False),
        ([{3: Logprob(-0.5, 1)}, {5: Logprob(-0.25, 1)}], -0.75, False),
        ([{3: Logprob(float("nan"), 1)}, {4: Logprob(-0.25, 1)}], -0.75, False),
        ([{3: Logprob(-0.5, 1)}, {4: Logprob(-0.25, 1)}], -0.75 - 3e-12, False),
    ],
)
def test_logprobs_of_another_backend_are_compared_under_their_row(logprobs: Any, total: float, near: bool) -> None:
    got = dataclasses.replace(WANTED, logprobs=logprobs, cumulative_logprob=total)
    assert (outputs.first_difference(got, WANTED, of_backend("cuda")) == "") == near
    assert outputs.first_difference(got, WANTED, of_backend("cpu"))


@pytest.mark.ci
def test_one_pass_is_no_shortcut() -> None:
    """Guessed completions, right or wrong, change nothing in what the reference generates."""
    voices = checkpoints.random_weights(random_config(4).to_dict(), 4)
    request = {"prompt": [5, 6, 7], "params": {"max_tokens": 6, "temperature": 0.9, "seq_seed": 8, "logprobs": 2}}
    plain = batches.expected(voices.model, voices.tokenizer, request, 64)
    right = batches.whole_sequences(request, plain)
    for sequences in (right, [[5, 6, 7, 9, 9, 9]], [*right, [5, 6, 7, 9], [], list(range(9, 80))]):
        runner = batches.OnePass(voices.model, sequences)
        assert batches.expected(runner, voices.tokenizer, request, 64).outputs == plain.outputs
    with torch.no_grad():
        direct = generate(voices.model, voices.tokenizer, [5, 6, 7], SamplingParams(**request["params"]), 0)  # type: ignore[arg-type]
    assert direct.outputs == plain.outputs
    assert isinstance(voices.model, ReferenceModel)


@pytest.mark.ci
def test_random_configurations_reach_every_branch() -> None:
    configs = [random_config(seed) for seed in range(60)]
    assert {ratio for config in configs for ratio in config.compress_ratios} == {0, 1, 2, 3, 4}
    assert {config.quantized for config in configs} == {True, False}
    assert {config.candidate_source_layer_id is None for config in configs} == {True, False}
    assert {len(config.engram_layer_ids) for config in configs} == {0, 1, 2}
    assert {config.rope_scaling is None for config in configs} == {True, False}
    assert any(config.uses_candidates(layer) for config in configs for layer in range(config.num_hidden_layers))
    assert [random_config(seed) for seed in range(5)] == configs[:5]


@pytest.mark.ci
def test_a_failing_batch_shrinks_to_the_request_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(one for one in engine.cases(1, 50) if len(one.params["requests"]) == 16)  # type: ignore[arg-type]
    culprit = case.params["requests"][2]  # type: ignore[index]

    def run(case: Case, options: Options) -> Findings:
        findings = Findings()
        if culprit in case.params["requests"]:  # type: ignore[operator]
            findings.differ("request", "values", "differs")
        return findings

    monkeypatch.setattr(engine, "run", run)
    assert engine.shrink(case, Options()).params["requests"] == [culprit]
    other = engine.one_case(1, 3)
    assert engine.shrink(other, Options()) == other


@pytest.mark.ci
def test_a_case_is_whole_in_its_parameters() -> None:
    case = engine.one_case(1, 0)
    assert json.loads(json.dumps(case.params)) == case.params
