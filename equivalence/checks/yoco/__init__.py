"""Check `yoco`: bounded replay of the decoder layers gives the same bits in both modes, and what its definition says.

Forms of a case: `modes` (mask = compact in outputs and in metadata, both = the reference with the same replay start, in
chunks, in company and through preemptions), `whole` (a keep of the whole receptive field = off) and `figures` (what a
smaller keep costs: KL divergence and top-1 agreement, printed). Knows how cases are named and engine options.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

from equivalence import outputs
from equivalence.cases import Case, Options, derived_seed
from equivalence.checks.yoco import cost
from equivalence.checks.yoco.metadata import Recorder, compare
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators import batches, checkpoints, circumstances, probes
from equivalence.generators.checkpoints import Voices
from equivalence.generators.probes import Model
from equivalence.shrinking import differs
from equivalence.tolerances import of_backend
from optimized import LLM
from reference.spec import RequestOutput

DEFAULT_CASES = 24

MAX_MODEL_LEN = 1024

_KINDS = ("chunked", "company", "preempted", "whole")


def cases(options: Options) -> Iterator[Case]:
    """The figures of the bundled model, which the reference gives on the CPU, then `options.cases` generated cases."""
    if options.backend == "cpu":
        yield Case("yoco", "figures", {"form": "figures"})
    count = DEFAULT_CASES if options.cases is None else options.cases
    for number in range(count):
        yield one_case(options.seed, number)


def one_case(seed: int, number: int) -> Case:
    """Case `number` of a seed: a model has two cases of every kind."""
    kind = _KINDS[number % len(_KINDS)]
    model = probes.draw_model(seed, number // (2 * len(_KINDS)))
    rng = random.Random(derived_seed("replay", seed, number))
    drawn = _preempted(rng, model) if kind == "preempted" else _company(rng, model, kind != "company")
    if model.name == "released" and number % (384 * 2 * len(_KINDS)) == 6 * 2 * len(_KINDS):
        drawn["requests"][0]["prompt"] = [rng.randrange(model.vocabulary) for _ in range(530)]  # past its index_topk
    least, field = model.least_keep, model.receptive_field
    keep = rng.choice((least, least, least + 1, rng.randint(least, least + 40)))
    if kind == "whole":
        keep = max(least, field + rng.choice((0, 0, 1, 7)))
    drawn["engine"] |= circumstances.lag_and_poison(rng)
    params = {"form": "whole" if kind == "whole" else "modes", "keep": keep, **model.params, **drawn}
    return Case("yoco", f"{number:05d}-{model.name}-{kind}", params)


def run(case: Case, options: Options) -> Findings:
    """Run one case. Raises SetupError for a form that it does not know."""
    params = cast("dict[str, Any]", case.params)
    if params["form"] == "figures":
        return cost.run(checkpoints.bundled())
    voices = checkpoints.of_case(params)
    findings = Findings()
    if params["form"] == "modes":
        _compare_modes(findings, voices, params, options.backend)
    elif params["form"] == "whole":
        compact = _generate(voices, params, options.backend, "compact")
        for name in ("mask", "off"):
            _compare_all(findings, name, compact, _generate(voices, params, options.backend, name))
    else:
        raise SetupError(f"case {case.name}: unknown form {params['form']!r}")
    return findings.close()


def shrink(case: Case, options: Options) -> Case:
    """The same case with as few requests as still differ."""
    params = dict(cast("dict[str, Any]", case.params))
    requests = params.get("requests", [])
    for place in reversed(range(len(requests))):
        fewer = {**params, "requests": params["requests"][:place] + params["requests"][place + 1 :]}
        if fewer["requests"] and differs(run, Case(case.check, case.name, fewer), options):
            params = fewer
    return Case(case.check, case.name, params)


def _compare_modes(findings: Findings, voices: Voices, params: dict[str, Any], backend: str) -> None:
    with Recorder() as masked_rows:
        mask = _generate(voices, params, backend, "mask", enforce_eager=True)
    with Recorder() as compact_rows:
        compact = _generate(voices, params, backend, "compact", enforce_eager=True)
    compare(findings, compact_rows, masked_rows)
    _compare_all(findings, "mask", compact, mask)
    for number, (request, got) in enumerate(zip(params["requests"], compact, strict=True)):
        whole = "prompt_logprobs" in request["params"]
        start = 0 if whole else max(0, len(request["prompt"]) - params["keep"])
        runner = batches.OnePass(voices.model, batches.whole_sequences(request, got), start)
        want = batches.expected(runner, voices.tokenizer, request, MAX_MODEL_LEN, start)
        outputs.compare(findings, f"request {number}, reference from {start}", got, want, of_backend(backend))
    if params["engine"].get("num_pages") and not any(got.metrics.num_preemptions for got in compact if got.metrics):
        findings.skip("preemption", "no request was preempted")


def _compare_all(findings: Findings, name: str, got: list[RequestOutput], want: list[RequestOutput]) -> None:
    for number, (one, other) in enumerate(zip(got, want, strict=True)):
        outputs.compare(findings, f"request {number}, compact against {name}", one, other)


def _generate(
    voices: Voices, params: dict[str, Any], backend: str, mode: str, enforce_eager: bool = False
) -> list[RequestOutput]:
    """enforce_eager: a recorder sees nothing of a step that is replayed from a graph."""
    options = {"device": backend, "max_model_len": MAX_MODEL_LEN, "enforce_eager": enforce_eager, **params["engine"]}
    if mode != "off":
        options |= {"yoco_mode": mode, "yoco_keep_tokens": params["keep"]}
    return batches.ask(LLM(str(voices.folder), **options), params["requests"])


def _company(rng: random.Random, model: Model, alone: bool) -> dict[str, Any]:
    """One to five requests in chunks of any size; alone: at most two of them at a time."""
    count = rng.choice((1, 2)) if alone else rng.choice((3, 4, 5))
    longest = [probes.prompt_length(rng, (model.limits[0], model.least_keep, *model.limits)) for _ in range(count)]
    longest[0] = rng.randint(model.least_keep + 1, probes.LONGEST)
    if model.name == "released":
        longest = [min(length, 150) for length in longest]
    requests = [probes.draw_request(rng, model.vocabulary, length, rng.randint(2, 5)) for length in longest]
    if rng.random() < 0.3:
        requests[-1]["params"]["prompt_logprobs"] = 1
    most = rng.choice((1, 2) if alone else (3, 16))
    sizes = [size for size in circumstances.CHUNKS if size >= most and sum(longest) <= 24 * size]
    size = rng.choice((*sizes, circumstances.WIDE))
    engine = {"max_num_seqs": most, "max_num_batched_tokens": size, "page_size": rng.choice((12, 24, 96))}
    return {"engine": engine, "requests": requests}


def _preempted(rng: random.Random, model: Model) -> dict[str, Any]:
    """A long prompt behind older requests that take its pages as they grow."""
    length = rng.randint(model.least_keep, model.least_keep + 60)
    probe = probes.draw_request(rng, model.vocabulary, length, 1)
    around = circumstances.draw("preempted", rng, model, probe)
    return {"engine": around["engine"], "requests": [*around["before"], probe]}
