"""Check `deterministic_sampling`: with one seed a request has one text and one vector of logprobs.

Whatever stands beside it, in any order, preempted, chunked, with bounded replay, with steps in flight or not, with 0,
1, 3 or 5 drafts of which a fixed or a scheduled number is verified: under the coupled rule, and of a greedy request
under both, it is what the request gives alone without drafts; under the ratio rule with fixed lengths, what it gives
alone with as many drafts. Forms of a case: `same` (some requests of a group in a circumstance), `reference` (two of
them, against the reference too, with what was drafted) and `seeds` (other seeds and other samples differ). Knows how
cases are named and engine options.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any, cast

from equivalence import outputs
from equivalence.cases import Case, Options, derived_seed
from equivalence.checks import speculated
from equivalence.checks.deterministic_sampling import blocks, expected
from equivalence.checks.deterministic_sampling.blocks import BlockWatch
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators import batches, checkpoints, drafting, speculation
from equivalence.generators.batches import Request
from equivalence.generators.probes import Model
from equivalence.shrinking import differs
from equivalence.tolerances import of_backend
from reference.spec import RequestOutput

DEFAULT_CASES = 128

GROUP_CASES, MODEL_GROUPS = 32, 2
"""Cases that share their requests and what these give alone; groups that share a model."""

_KINDS = ("batch", "alone", "scarce", "chunked", "compact", "batch", "seeds", "reference")


def cases(options: Options) -> Iterator[Case]:
    """`options.cases` cases: every kind with every number of drafts, group after group."""
    count = DEFAULT_CASES if options.cases is None else options.cases
    return (one_case(options.seed, number) for number in range(count))


def one_case(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    group, kind = number // GROUP_CASES, _KINDS[number % len(_KINDS)]
    model = drafting.draw_model(seed, group // MODEL_GROUPS)
    nextn = speculation.NEXTN[number // len(_KINDS) % len(speculation.NEXTN)]
    rng = random.Random(derived_seed("deterministic", seed, number))
    if kind == "seeds":
        requests = draw_twins(rng, model.vocabulary)
    else:
        draw = draw_growing if kind in ("scarce", "reference") else draw_requests
        requests = draw(random.Random(derived_seed("sampled", seed, group)), model.vocabulary)
    count = {"alone": 1, "reference": 2, "seeds": 2, "scarce": 4}.get(kind, rng.randint(4, 8))
    places = rng.sample(range(len(requests)), count)
    engine = speculation.draw_options(rng, nextn)
    if nextn and kind == "reference":
        engine["verification_lengths"] = "fixed"
    if nextn and rng.random() < 0.5:
        engine |= {"verification": "ratio", "penalised_residual": rng.random() < 0.25}
    engine |= _around(kind, rng, model, [requests[place] for place in places], nextn)
    replay: dict[str, Any] = {}
    if engine.get("yoco_keep_tokens") == _least_keep(model, nextn):
        replay = {"yoco_mode": "mask", "yoco_keep_tokens": engine["yoco_keep_tokens"]}
    form = kind if kind in ("seeds", "reference") else "same"
    params = {"form": form, **model.params, "requests": requests, "places": places, "engine": engine, "replay": replay}
    if nextn:
        params["costs"] = speculation.draw_costs(rng)
    return Case("deterministic_sampling", f"{number:05d}-{kind}-{nextn}", params)


def _around(kind: str, rng: random.Random, model: Model, requests: list[Request], nextn: int) -> dict[str, Any]:
    """Engine options of a kind of circumstance."""
    if kind == "scarce":
        return speculation.scarce(rng, model, requests, nextn)
    if kind == "compact":
        # With so many rows even the draft's window of taps is what it is without replay.
        whole = model.receptive_field + model.limits[0] + drafting.BLOCK
        keep = rng.choice((whole, _least_keep(model, nextn)))
        return {**speculation.wide(len(requests)), "yoco_mode": "compact", "yoco_keep_tokens": keep}
    return (speculation.chunked if kind == "chunked" else speculation.roomy)(rng, len(requests))


def _least_keep(model: Model, nextn: int) -> int:
    """Rows that bounded replay keeps at least; what it leaves out shows, so that such a case is compared with masks."""
    return model.limits[0] + nextn + 1


def draw_requests(rng: random.Random, vocabulary: int) -> list[Request]:
    """The requests of a group: every sampling option, prompts on both sides of a window."""
    requests = []
    for _ in range(8):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.choice((1, 2, 7, 16, 17, 33, 40)))]
        params = drafting.draw_sampling(rng, vocabulary, rng.choice((4, 8, 12)))
        requests.append({"prompt": prompt, "params": params | {"n": rng.choice((1, 1, 1, 2))}})
    return requests


def draw_growing(rng: random.Random, vocabulary: int) -> list[Request]:
    """Requests that begin with few pages and end with many, after some blocks."""
    requests = []
    for _ in range(4):
        params = drafting.draw_sampling(rng, vocabulary, rng.randint(14, 20))
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 8))]
        requests.append({"prompt": prompt, "params": params})
    return requests


def draw_twins(rng: random.Random, vocabulary: int) -> list[Request]:
    """One sampled request with two seeds, three samples each; long enough that two alike are no chance."""
    prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 20))]
    temperature = rng.choice((1.0, 3.0))
    params: dict[str, Any] = {"max_tokens": 10, "temperature": temperature, "ignore_eos": True, "n": 3, "logprobs": 0}
    return [{"prompt": prompt, "params": {**params, "seq_seed": rng.getrandbits(64)}} for _ in range(2)]


def run(case: Case, options: Options) -> Findings:
    """Run one case. Raises SetupError for a form that it does not know."""
    params = cast("dict[str, Any]", case.params)
    findings = Findings()
    if params["form"] not in ("same", "reference", "seeds"):
        raise SetupError(f"case {case.name}: unknown form {params['form']!r}")
    requests = [params["requests"][place] for place in params["places"]]
    llm = speculated.engine(params, options.backend, **params["engine"])
    with BlockWatch(findings, [(rows, time) for rows, time in params.get("costs", ())]) as watch:
        got = batches.ask(llm, requests)
    if params["form"] == "seeds":
        _compare_samples(findings, got)
        return findings.close()
    for number, (place, request, output) in enumerate(zip(params["places"], requests, got, strict=True)):
        rule = expected.rule_of(request, params["engine"])
        if rule is None:
            continue
        rule |= params["replay"]
        stored = {key: params[key] for key in ("config", "weights", "requests")}
        want = _alone(json.dumps(stored, sort_keys=True), json.dumps(rule, sort_keys=True), options.backend)[place]
        outputs.compare(findings, f"request {number}", output, want)
        if params["form"] == "reference":
            voices = checkpoints.of_case(params)
            made, told = expected.by_reference(voices, request, params["engine"], output, speculated.MAX_MODEL_LEN)
            outputs.compare(findings, f"request {number}, reference", output, made, of_backend(options.backend))
            blocks.compare(findings, f"request {number}", watch, output, told)
    if not findings.comparisons:
        findings.comparisons += 1
        findings.skip("requests", "none is greedy, and lengths that are scheduled change the text under the ratio rule")
    if "num_pages" in params["engine"] and not any(one.metrics and one.metrics.num_preemptions for one in got):
        findings.skip("preemption", "no request was preempted")
    return findings.close()


def shrink(case: Case, options: Options) -> Case:
    """The same case with as few requests as still differ."""
    params = dict(cast("dict[str, Any]", case.params))
    for at in reversed(range(len(params["places"]))):
        fewer = {**params, "places": params["places"][:at] + params["places"][at + 1 :]}
        if fewer["places"] and differs(run, Case(case.check, case.name, fewer), options):
            params = fewer
    return Case(case.check, case.name, params)


@functools.lru_cache(maxsize=16)
def _alone(stored: str, rule: str, backend: str) -> list[RequestOutput]:
    """What the requests of a group give one after another, each alone."""
    params = json.loads(stored)
    options = {"async_scheduling": False, **speculation.wide(1), **json.loads(rule)}
    return batches.ask(speculated.engine(params, backend, **options), params["requests"])


def _compare_samples(findings: Findings, got: list[RequestOutput]) -> None:
    """No two completions of one prompt are alike."""
    made = [(output.request_id, one.index, one.token_ids) for output in got for one in output.outputs]
    for (first, i, ids), (second, j, others) in itertools.combinations(made, 2):
        findings.comparisons += 1
        if ids == others:
            findings.differ(f"request {second}, completion {j}", "values", f"the same ids as {first}, completion {i}")
