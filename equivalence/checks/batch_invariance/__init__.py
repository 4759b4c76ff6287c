"""Check `batch_invariance`: what a probe request gives does not depend on anything but the request.

A case puts one probe in one circumstance (chunks, companions, preemption, reused slots, prefill instead of decode, …)
and compares ids, logprob bits, ranks and text with the probe alone in one piece; one in twelve takes a span of prompt
lengths in chunks of one size. Knows how cases are named and which form each takes; what a circumstance is stands in
`equivalence.generators.circumstances`.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from equivalence import outputs
from equivalence.cases import Case, Options, derived_seed
from equivalence.checks.batch_invariance import lengths, plans
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators import batches, checkpoints, circumstances, probes
from equivalence.generators.batches import Request
from equivalence.shrinking import differs
from optimized import LLM
from reference.spec import RequestOutput

DEFAULT_CASES = 48

MAX_MODEL_LEN = 512

KINDS = (*circumstances.KINDS, "lengths")

SPANS = tuple(range(first, first + 60) for first in range(1, probes.LONGEST, 60))
"""Prompt lengths of a case of kind `lengths`."""

ALONE = {
    "page_size": 96,
    "max_num_seqs": 1,
    "max_num_batched_tokens": circumstances.WIDE,
    "max_model_len": MAX_MODEL_LEN,
    "async_scheduling": False,
}
"""The engine that gives what every other must give."""


def cases(options: Options) -> Iterator[Case]:
    """`options.cases` cases: every kind of circumstance in turn, for one probe after another, and spans of lengths."""
    count = DEFAULT_CASES if options.cases is None else options.cases
    return (one_case(options.seed, number) for number in range(count))


def one_case(seed: int, number: int) -> Case:
    """Case `number` of a seed: a probe has one case of every circumstance."""
    group, kind = number // len(KINDS), KINDS[number % len(KINDS)]
    if kind == "lengths":
        return _lengths_case(seed, number, group)
    model = probes.draw_model(seed, group)
    rng = random.Random(derived_seed("probe", seed, group))
    length = probes.prompt_length(rng, model.limits)
    if model.name == "released":
        length = 530 if kind == "chunked" and group % 384 == 6 else min(length, 140)  # rows of this model are costly
    tokens = rng.randint(3, 6)
    probe = probes.draw_request(rng, model.vocabulary, length, 3 if model.name == "released" else tokens)
    rng = random.Random(derived_seed("circumstance", seed, number))
    around = circumstances.draw(kind, rng, model, probe)
    if length > MAX_MODEL_LEN - 16:
        around["engine"]["max_model_len"] = 2 * MAX_MODEL_LEN
    return Case("batch_invariance", f"{number:05d}-{model.name}-{kind}", {**model.params, "probe": probe, **around})


def _lengths_case(seed: int, number: int, place: int) -> Case:
    """Of the cases that see every length, the one at that place: models in turn have one for each span and chunk."""
    sweep, part = divmod(place, len(SPANS) * len(circumstances.CHUNKS))
    span, chunk = divmod(part, len(circumstances.CHUNKS))
    model = probes.draw_swept_model(seed, sweep)
    rng = random.Random(derived_seed("swept tokens", seed, sweep))
    tokens = [rng.randrange(model.vocabulary) for _ in range(probes.LONGEST + lengths.DECODED)]
    params: dict[str, Any] = {"tokens": tokens, "chunk": circumstances.CHUNKS[chunk], "lengths": list(SPANS[span])}
    return Case("batch_invariance", f"{number:05d}-{model.name}-lengths", {"form": "lengths", **model.params, **params})


def run(case: Case, options: Options) -> Findings:
    """Compute the probe in its circumstance and alone. Raises SetupError for a form of case that it does not know."""
    params = cast("dict[str, Any]", case.params)
    voices = checkpoints.of_case(params)
    if params["form"] == "lengths":
        return lengths.run(voices, params["tokens"], params["chunk"], params["lengths"], options.backend)
    probe = cast(Request, params["probe"])
    if params["form"] == "plans":
        return plans.run(voices, probe, params["after"], params["draw"], options.backend)
    stored = {key: params[key] for key in ("config", "weights") if key in params}
    want = _alone(json.dumps(stored, sort_keys=True), json.dumps(probe, sort_keys=True), options.backend)
    if want.outputs[0].error:
        raise SetupError(f"case {case.name}: the probe alone fails: {want.outputs[0].error}")
    findings = Findings()
    llm = LLM(str(voices.folder), **{**ALONE, "device": options.backend, **params["engine"]})
    if params["earlier"]:
        batches.ask(llm, params["earlier"])
    if params["form"] == "whole":
        got = _probe_among(llm, params, probe)
        outputs.compare(findings, "probe", got, want)
        if "num_pages" in params["engine"] and got.metrics is not None and not got.metrics.num_preemptions:
            findings.skip("preemption", "the probe was not preempted")
    elif params["form"] == "resumed":
        _compare_resumed(findings, llm, params, probe, want)
    elif params["form"] == "scored":
        _compare_scored(findings, llm, params, probe, want)
    else:
        raise SetupError(f"case {case.name}: unknown form {params['form']!r}")
    return findings.close()


def shrink(case: Case, options: Options) -> Case:
    """The same circumstance with as few companions, or half of the lengths, as still make a difference."""
    params = dict(cast("dict[str, Any]", case.params))
    if params["form"] == "lengths":
        return _fewer_lengths(case, options)
    for name in ("earlier", "before", "after"):
        for place in reversed(range(len(params[name]))):
            fewer = {**params, name: params[name][:place] + params[name][place + 1 :]}
            if differs(run, Case(case.check, case.name, fewer), options):
                params = fewer
    return Case(case.check, case.name, params)


def _fewer_lengths(case: Case, options: Options) -> Case:
    """As few lengths as halving finds."""
    tried = cast("list[int]", case.params["lengths"])
    for half in (tried[: len(tried) // 2], tried[len(tried) // 2 :]):
        fewer = Case(case.check, case.name, {**case.params, "lengths": cast("Any", half)})
        if 0 < len(half) < len(tried) and differs(run, fewer, options):
            return _fewer_lengths(fewer, options)
    return case


@functools.lru_cache(maxsize=4)
def _alone(stored: str, probe: str, backend: str) -> RequestOutput:
    """The probe alone, in one piece, in an engine that has run nothing else."""
    request = json.loads(probe)
    length = len(request["prompt"]) + request["params"]["max_tokens"]
    options = {**ALONE, "max_model_len": max(MAX_MODEL_LEN, length + 1)}
    return batches.ask(LLM(str(checkpoints.of_case(json.loads(stored)).folder), device=backend, **options), [request])[
        0
    ]


def _probe_among(llm: LLM, params: dict[str, Any], probe: Request) -> RequestOutput:
    before, after = params["before"], params["after"]
    return batches.ask(llm, [*before, probe, *after])[len(before)]


def _compare_resumed(findings: Findings, llm: LLM, params: dict[str, Any], probe: Request, want: RequestOutput) -> None:
    """The tail of the output, from a prompt that ends in its head."""
    cut, whole = params["cut"], want.outputs[0]
    sampling = {**probe["params"], "max_tokens": probe["params"]["max_tokens"] - cut}
    prompt = [*probe["prompt"], *whole.token_ids[:cut]]
    got = _probe_among(llm, params, {"prompt": prompt, "params": sampling})
    findings.comparisons += 1
    tail = replace(
        whole,
        token_ids=whole.token_ids[cut:],
        logprobs=(whole.logprobs or [])[cut:],
        text=got.outputs[0].text,
        cumulative_logprob=got.outputs[0].cumulative_logprob,
    )
    detail = outputs.first_difference(got.outputs[0], tail)
    if detail:
        findings.differ(f"probe resumed after {cut} tokens", "values", detail)


def _compare_scored(findings: Findings, llm: LLM, params: dict[str, Any], probe: Request, want: RequestOutput) -> None:
    """Logprobs of the output as logprobs of a prompt that holds it."""
    whole = want.outputs[0]
    prompt = [*probe["prompt"], *whole.token_ids]
    sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": probe["params"]["logprobs"]}
    got = _probe_among(llm, params, {"prompt": prompt, "params": sampling})
    scores = (got.prompt_logprobs or [])[len(probe["prompt"]) :]
    findings.comparisons += 1
    mine = replace(whole, logprobs=cast("Any", scores), error=got.outputs[0].error)
    detail = outputs.first_difference(mine, whole)
    if detail:
        findings.differ("probe as prompt", "values", detail)
