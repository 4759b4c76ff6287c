"""Form `hostile` of check `structured_output`: 200 good and hostile grammars in turn beside plain requests.

Counted in engine steps, not seconds: each plain request ends in no later step than it does where the hostile ones are
absent. Every hostile request gets an error that names `so_args` or a dead end, or a completion. Knows requests; what
makes a grammar hostile stands in `equivalence.generators.structured`.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from equivalence.cases import derived_seed
from equivalence.checks import speculated
from equivalence.checks.structured_output import judge
from equivalence.checks.structured_output.watch import Watch, shared_compilers
from equivalence.findings import Findings
from equivalence.generators import batches, drafting, speculation, structured
from equivalence.generators.batches import Request
from optimized import LLM
from reference.spec import RequestOutput

GRAMMARS = 200

PLAIN = 20


def run(findings: Findings, backend: str) -> Findings:
    """Generate without the hostile requests, then with them."""
    rng = random.Random(derived_seed("crowd"))
    model = drafting.draw_model(0, 0)
    kinds = itertools.islice(itertools.cycle(structured.KINDS), GRAMMARS // 2)
    good = [structured.draw_request(rng, model.vocabulary, kind) for kind in kinds]
    hostile = [_hostile(so_args) for so_args in itertools.islice(itertools.cycle(structured.hostile()), GRAMMARS // 2)]
    every = GRAMMARS // 2 // PLAIN
    crowd: list[tuple[str, Request]] = []
    for number, (one, other) in enumerate(zip(good, hostile, strict=True)):
        crowd += [("good", one), ("hostile", other)]
        if number % every == 0:
            crowd.append(("plain", {"prompt": [number + 5], "params": {"max_tokens": 12, "seq_seed": number}}))
    with shared_compilers():
        llm = speculated.engine(model.params, backend, grammar_timeout=2.0, **speculation.wide(32))
        peaceful = [one for one in crowd if one[0] != "hostile"]
        # The compiled grammars are kept, so that no clock decides when a good one begins.
        batches.ask(llm, [request for _, request in peaceful])
        want = _ends(findings, llm, peaceful)
        got = _ends(findings, llm, crowd)
    for place, (mine, theirs) in enumerate(zip(_of("plain", crowd, got), _of("plain", peaceful, want), strict=True)):
        findings.comparisons += 1
        if mine[0] > theirs[0] or mine[1].outputs[0].token_ids != theirs[1].outputs[0].token_ids:
            findings.differ(f"plain request {place}", "values", f"ends in step {mine[0]}, without them in {theirs[0]}")
    for place, (_, output) in enumerate(_of("hostile", crowd, got)):
        findings.comparisons += 1
        for made in output.outputs:
            told = made.error is not None and ("so_args" in made.error or judge.DEAD_END in made.error)
            if not told and (made.error or made.finish_reason not in ("stop", "length")):
                findings.differ(f"hostile request {place}", "values", f"{made.finish_reason}: {made.error}")
            elif made.finish_reason == "stop" and (wrong := judge.invalid_json(hostile[place], made.text)):
                findings.differ(f"hostile request {place}", "language", wrong)
    for place, ((_, output), request) in enumerate(zip(_of("good", crowd, got), good, strict=True)):
        findings.comparisons += 1
        for made in output.outputs:
            if wrong := judge.complaint(request, made):
                findings.differ(f"good request {place}", "language", wrong)
    return findings.close()


def _hostile(so_args: dict[str, Any]) -> Request:
    return {"prompt": [7], "params": {"max_tokens": 24, "seq_seed": 1, "so_args": so_args}}


Ended = tuple[int, RequestOutput]
"""A request's output, and in which step of its call it came."""


def _ends(findings: Findings, llm: LLM, crowd: list[tuple[str, Request]]) -> list[Ended]:
    before = llm.statistics.steps
    with Watch(findings) as watch:
        made = batches.ask(llm, [request for _, request in crowd])
    return [(watch.finished.get(output.request_id, before) - before, output) for output in made]


def _of(kind: str, crowd: list[tuple[str, Request]], ended: list[Ended]) -> list[Ended]:
    return [one for (name, _), one in zip(crowd, ended, strict=True) if name == kind]
