"""Check `structured_output`: texts stay in their language, whatever runs beside them and however they are speculated.

Forms of a case: `batch` (some requests of a group, structured and plain, in a circumstance: every completion is judged
by others than the compiler, every matcher is compared with a fresh one after every step, and what a coupled or greedy
request gives is what it gives without drafts in plain company) and `hostile` (good and hostile grammars in turn beside
plain requests, which end in no later step). Knows how cases are named and engine options.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any, cast

from equivalence import outputs
from equivalence.cases import Case, Options, derived_seed
from equivalence.checks import speculated
from equivalence.checks.structured_output import crowd, judge
from equivalence.checks.structured_output.watch import Watch, shared_compilers
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators import batches, drafting, speculation, structured
from equivalence.generators.batches import Request
from equivalence.shrinking import differs
from optimized import LLM
from reference.spec import CompletionOutput, RequestOutput

DEFAULT_CASES = 48

GROUP_CASES, MODEL_GROUPS = 12, 4
"""Cases that share their requests and what these give alone; groups that share a model."""

_KINDS = ("batch", "scarce", "chunked", "aborted")


def cases(options: Options) -> Iterator[Case]:
    """The hostile crowd, then `options.cases` generated cases."""
    yield Case("structured_output", "hostile", {"form": "hostile"})
    count = DEFAULT_CASES if options.cases is None else options.cases
    for number in range(count):
        yield one_case(options.seed, number)


def one_case(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    group, kind = number // GROUP_CASES, _KINDS[number % len(_KINDS)]
    model = drafting.draw_model(seed, group // MODEL_GROUPS)
    requests = draw_requests(random.Random(derived_seed("languages", seed, group)), model.vocabulary)
    rng = random.Random(derived_seed("structured", seed, number))
    places = rng.sample(range(len(requests)), rng.randint(3, len(requests)))
    nextn = speculation.NEXTN[number // len(_KINDS) % len(speculation.NEXTN)]
    engine = speculation.draw_options(rng, nextn)
    if nextn:
        engine["verification"] = rng.choice(("coupled", "coupled", "ratio"))
    if kind == "scarce":
        engine |= speculation.scarce(rng, model, [requests[place] for place in places], nextn)
    else:
        engine |= speculation.chunked(rng, len(places)) if kind == "chunked" else speculation.wide(len(places))
    params: dict[str, Any] = {"form": "batch", **model.params, "requests": requests, "places": places, "engine": engine}
    if nextn:
        params["costs"] = speculation.draw_costs(rng)
    unlucky = [n for n in range(len(places)) if kind == "aborted" and rng.random() < 0.4]
    params["aborts"] = {str(n): rng.randint(1, 12) for n in unlucky}
    return Case("structured_output", f"{number:05d}-{kind}-{nextn}", params)


def draw_requests(rng: random.Random, vocabulary: int) -> list[Request]:
    """The requests of a group: one in a language of every kind, two without."""
    requests = [structured.draw_request(rng, vocabulary, kind) for kind in structured.KINDS]
    for _ in range(2):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 30))]
        requests.append({"prompt": prompt, "params": drafting.draw_sampling(rng, vocabulary, rng.choice((6, 12, 24)))})
    return requests


def run(case: Case, options: Options) -> Findings:
    """Run one case. Raises SetupError for a form that it does not know."""
    params = cast("dict[str, Any]", case.params)
    findings = Findings()
    if params["form"] == "hostile":
        return crowd.run(findings, options.backend)
    if params["form"] != "batch":
        raise SetupError(f"case {case.name}: unknown form {params['form']!r}")
    stored = json.dumps({key: params[key] for key in ("config", "weights", "requests")}, sort_keys=True)
    with shared_compilers():
        want = _plain(stored, options.backend)
        requests = [params["requests"][place] for place in params["places"]]
        with Watch(findings, params["aborts"]):
            got = batches.ask(_engine(params, options.backend, **params["engine"]), requests)
    free = params["engine"].get("verification") == "ratio"
    for number, (place, request, output) in enumerate(zip(params["places"], requests, got, strict=True)):
        for mine, theirs in zip(output.outputs, want[place].outputs, strict=True):
            item = f"request {number}, completion {mine.index}"
            _judge(findings, item, request, mine)
            if not free or not request["params"]["temperature"]:
                _compare(findings, item, mine, theirs)
    if "num_pages" in params["engine"] and not any(one.metrics and one.metrics.num_preemptions for one in got):
        findings.skip("preemption", "no request was preempted")
    return findings.close()


def shrink(case: Case, options: Options) -> Case:
    """The same case with as few requests as still differ."""
    params = dict(cast("dict[str, Any]", case.params))
    places = params.get("places", [])
    for at in reversed(range(len(places))):
        fewer = {**params, "places": params["places"][:at] + params["places"][at + 1 :]}
        if fewer["places"] and differs(run, Case(case.check, case.name, fewer), options):
            params = fewer
    return Case(case.check, case.name, params)


@functools.lru_cache(maxsize=2)
def _plain(stored: str, backend: str) -> list[RequestOutput]:
    """What every request of a group gives without drafts, all in one batch."""
    params = json.loads(stored)
    options = {"async_scheduling": False, **speculation.wide(2 * len(params["requests"]))}
    return batches.ask(_engine(params, backend, **options), params["requests"])


def _engine(params: dict[str, Any], backend: str, **options: Any) -> LLM:
    return speculated.engine(params, backend, grammar_workers=1, **options)


def _judge(findings: Findings, item: str, request: Request, completion: CompletionOutput) -> None:
    if "so_args" not in request["params"]:
        return
    findings.comparisons += 1
    wrong = judge.complaint(request, completion)
    if wrong:
        findings.differ(item, "language", wrong)


def _compare(findings: Findings, item: str, got: CompletionOutput, want: CompletionOutput) -> None:
    """One completion with what it is without drafts; an aborted one as far as it came."""
    findings.comparisons += 1
    if got.finish_reason == "abort":
        same = got.token_ids == want.token_ids[: len(got.token_ids)]
        detail = "" if same else f"aborted after {got.token_ids}, which do not begin {want.token_ids}"
    elif got.error and want.error and judge.DEAD_END in got.error and judge.DEAD_END in want.error:
        detail = "" if got.token_ids == want.token_ids else f"a dead end after {got.token_ids}, want {want.token_ids}"
    else:
        detail = outputs.first_difference(got, want)
    if detail:
        findings.differ(item, "values", detail)
