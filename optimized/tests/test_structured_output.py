"""Structured requests beside plain ones: finished texts are in their language, and a hostile grammar harms nobody."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from optimized import LLM, RequestOutput, SamplingParams
from optimized.tests.stub import BLOCK, StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci

Model = tuple[LLM, StubWorker]

#: One compiler process is enough here.
ONE = {"grammar_workers": 1}

SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", 1]}}, "required": ["a", "b"]},
    {"type": "array", "items": {"type": ["null", "boolean"]}, "maxItems": 3},
    {"type": "string", "maxLength": 4},
    {"type": "string", "pattern": "^[^a-z]{3}.$"},
    {"anyOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"const": {"k": [1, None]}}]},
]
REGEXES = ["[a-c]{3}\\d(foo|bar)", "(the|and)+!", "a.b\\n?", "é{2}"]
CHOICES = [["yes", "no"], ['quo"te\\', "new\nline", "é"]]
HOSTILE: list[tuple[str, Any]] = [
    ("json", "{"),
    ("json", "[" * 60000),
    ("json", '{"type":"array","items":' * 100 + "{}" + "}" * 100),
    ("json", '{"title":"' + "a" * 2**20 + '"}'),
    ("json", {"not": {}}),
    ("json", {"$ref": "#"}),
    ("json", {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}),
    ("regex", "("),
    ("regex", "((a*)*)*b"),
    ("regex", "(?=a)b"),
    ("regex", "a" * 10**6),
    ("ebnf", ""),
    ("ebnf", 'root ::= "a'),
    ("ebnf", "root ::= " + "(" * 100 + '"a"' + ")" * 100),
    ("ebnf", "root ::= x"),
    ("ebnf", 'root ::= root "a"'),
    ("ebnf", "root ::= \0"),
    ("choice", ["\ud800"]),
    ("choice", ["a" * 10**6]),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with pytest.MonkeyPatch.context() as patch:
        yield stub_llm(patch, model_folder(tmp_path_factory.mktemp("model")), max_num_seqs=8, num_pages=40, **ONE)


def structured(kind: str, schema: Any, **params: Any) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 60, "seq_seed": 5, "so_args": {"schema_type": kind, "schema": schema}, **params}
    )


def run(model: Model, params: list[SamplingParams]) -> list[RequestOutput]:
    return model[0].generate([[9, 9, number % 7] for number in range(len(params))], params, use_tqdm=False)


def assert_in_language(params: SamplingParams, text: str) -> None:
    """Judged by others than the compiler."""
    if params.so_args is None:
        raise AssertionError("not a structured request")
    kind, schema = params.so_args["schema_type"], params.so_args["schema"]
    if kind == "json":
        jsonschema.Draft202012Validator(schema or {}).validate(json.loads(text))
    elif kind == "regex":
        assert re.fullmatch(schema, text)
    else:
        assert text in schema


GOOD = [
    *[("json", one) for one in SCHEMAS],
    *[("regex", one) for one in REGEXES],
    *[("choice", one) for one in CHOICES],
]


def test_every_finished_text_is_in_its_language(model: Model) -> None:
    params = [structured(*GOOD[i % len(GOOD)], seq_seed=i, temperature=[0, 1, 2.0][i % 3]) for i in range(60)]
    outputs = run(model, params)
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert set(reasons) <= {"stop", "length"}
    assert reasons.count("stop") > 40
    for one, output in zip(params, outputs, strict=True):
        if output.outputs[0].finish_reason == "stop":
            assert_in_language(one, output.outputs[0].text)


def test_any_json_is_json(model: Model) -> None:
    outputs = run(model, [structured("json", None, seq_seed=seed, max_tokens=80) for seed in range(8)])
    finished = [output.outputs[0].text for output in outputs if output.outputs[0].finish_reason == "stop"]
    assert finished
    assert [json.loads(text) for text in finished]


def finishing_steps(model: Model, params: list[SamplingParams]) -> dict[int, tuple[int, list[int]]]:
    """Step and ids of each plain request, by its place."""
    llm, worker = model
    finished: dict[int, tuple[int, list[int]]] = {}
    worker.steps = 0
    engine_step = llm._engine.step

    def step() -> list[RequestOutput]:
        outputs = engine_step()
        for output in outputs:
            finished[int(output.request_id)] = (worker.steps, output.outputs[0].token_ids)
        return outputs

    first = llm._next_request
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm._engine, "step", step)
        run(model, params)
    plain = [place for place, one in enumerate(params) if one.so_args is None]
    return {place: finished[first + place] for place in plain}


def test_hostile_grammars_delay_no_plain_request_by_a_step(model: Model) -> None:
    plain = SamplingParams(max_tokens=12, seq_seed=1, ignore_eos=True)
    hostile = [structured(*HOSTILE[i % len(HOSTILE)]) for i in range(60)]
    mixed = [one for bad in hostile for one in (bad, plain)]
    refused_at_the_door = [one for _ in hostile for one in (structured("json", {"not": {}}), plain)]
    assert finishing_steps(model, mixed) == finishing_steps(model, refused_at_the_door)


def test_alternating_good_and_hostile_grammars_each_get_their_own_answer(model: Model) -> None:
    good = [structured(*GOOD[i % len(GOOD)], seq_seed=i) for i in range(100)]
    bad = [structured(*HOSTILE[i % len(HOSTILE)]) for i in range(100)]
    plain = [SamplingParams(max_tokens=8, seq_seed=i) for i in range(100)]
    params = [one for three in zip(good, bad, plain, strict=True) for one in three]
    outputs = run(model, params)
    assert {output.outputs[0].finish_reason for output in outputs[1::3]} == {"error"}
    assert all("so_args" in (output.outputs[0].error or "") for output in outputs[1::3])
    places = [place for place in range(len(params)) if place % 3 != 1]
    prompts = [[9, 9, place % 7] for place in places]
    again = model[0].generate(prompts, [params[place] for place in places], use_tqdm=False)
    assert [(one.outputs[0].token_ids, one.outputs[0].text) for one in again] == [
        (outputs[place].outputs[0].token_ids, outputs[place].outputs[0].text) for place in places
    ]


def test_preemption_chunks_and_asynchrony_change_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path)
    prompts = [[2 + (i * 7 + j) % 200 for j in range(10 + i)] for i in range(12)]
    params = [structured(*GOOD[i % len(GOOD)], seq_seed=i, n=1 + i % 2, logprobs=1) for i in range(12)]
    results = []
    for options in ({"num_pages": 12}, {"async_scheduling": False, "max_num_batched_tokens": 7}):
        llm, _ = stub_llm(monkeypatch, folder, **options, **ONE)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        results.append([[(o.token_ids, o.text, o.logprobs, o.finish_reason) for o in one.outputs] for one in outputs])
        preemptions = sum(one.metrics.num_preemptions for one in outputs if one.metrics)
        assert (preemptions > 0) == ("num_pages" in options)
    assert results[0] == results[1]


def test_the_rules_of_ending(model: Model) -> None:
    cases = {
        "a language that is used up ends without a stop id": (
            structured("regex", "a{3}", ignore_eos=True),
            ("aaa", "stop", None),
        ),
        "one that is not goes on": (
            structured("regex", "a*", ignore_eos=True, max_tokens=5),
            ("aaaaa", "length", None),
        ),
        "max_tokens cuts": (structured("choice", ["xyz"], max_tokens=2), ("xy", "length", None)),
        "a stop id ends a complete text": (
            structured("choice", ["xyz"], stop_token_ids=[7], logit_bias={7: 100}),
            ("xyz", "stop", 7),
        ),
        "min_tokens waits where the language goes on": (
            structured("regex", "a+", min_tokens=4, max_tokens=4),
            ("aaaa", "length", None),
        ),
        "a stop string cuts": (structured("choice", ["xyz"], stop=["y"]), ("x", "stop", "y")),
    }
    outputs = run(model, [params for params, _ in cases.values()])
    for output, (name, (_, expected)) in zip(outputs, cases.items(), strict=True):
        one = output.outputs[0]
        assert (one.text, one.finish_reason, one.stop_reason) == expected, name


@pytest.mark.parametrize(
    "params, message",
    [
        (structured("choice", ["ab"], min_tokens=9), "request 1: a dead end: its grammar allows no token"),
        (structured("choice", ["a("], stop_token_ids=[9]), "dead end"),
        (structured("regex", "a$b"), "so_args: Regex parsing warning"),
    ],
)
def test_a_dead_end_ends_its_own_request(tmp_path: Path, params: SamplingParams, message: str, model: Model) -> None:
    plain = SamplingParams(max_tokens=12, seq_seed=1)
    before, bad, after = run(model, [plain, params, plain])
    assert bad.outputs[0].finish_reason == "error"
    assert message.replace("request 1: ", "") in (bad.outputs[0].error or "")
    assert [one.outputs[0].finish_reason for one in (before, after)] != ["error", "error"]
    model[0]._engine.check_idle()


def test_a_text_that_ends_inside_a_block_is_not_at_the_dead_end_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, worker = stub_llm(monkeypatch, model_folder(tmp_path), nextn=BLOCK, **ONE)
    monkeypatch.setattr(worker, "draft_logits", worker.logits)
    letter = llm.get_tokenizer().encode("a")[-1]  # type: ignore[union-attr]
    params = structured("regex", "a{3}", ignore_eos=True, min_tokens=8, stop=["zz"], logit_bias={letter: 100})
    (output,) = llm.generate([[5]], params, use_tqdm=False)
    assert output.metrics is not None and output.metrics.num_accepted_drafts == 2
    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.outputs[0].error) == ("aaa", "stop", None)


def test_requests_that_wait_for_grammars_hold_up_nobody_behind_them(model: Model) -> None:
    llm, _ = model
    run(model, [structured("regex", "first")])
    pool = llm._engine._structured._pool
    assert pool is not None
    first = llm._next_request
    waiting = [structured("regex", "never") for _ in range(50)]  # more than the queue ahead of what runs
    finished: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "submit", lambda language: _Never())
        engine_step = llm._engine.step

        def step() -> list[RequestOutput]:
            outputs = engine_step()
            finished.extend(int(output.request_id) - first for output in outputs)
            if len(waiting) in finished:
                for number in range(len(waiting)):
                    llm.abort(str(first + number))
            return outputs

        patch.setattr(llm._engine, "step", step)
        run(model, [*waiting, SamplingParams(max_tokens=3)])
    assert finished[0] == len(waiting)
    assert len(finished) == len(waiting) + 1


def test_a_request_is_aborted_while_its_grammar_is_compiled(model: Model) -> None:
    llm, _ = model
    number = str(llm._next_request)
    pool = llm._engine._structured._pool
    assert pool is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "submit", lambda language: _Never())
        threading.Timer(0.3, llm.abort, [number]).start()
        (output,) = llm.generate([[5]], structured("regex", "never"), use_tqdm=False)
    assert output.outputs[0].finish_reason == "abort"
    assert output.outputs[0].token_ids == []
    llm._engine.check_idle()


class _Never:
    """A job that is never done."""

    done = False
