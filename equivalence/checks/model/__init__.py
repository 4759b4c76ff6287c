"""Check `model`: the reference against golden packs, and the engine against the reference.

Part `golden`: `fp32_noq` end to end, every other mode sub-step by sub-step on recorded inputs, and known answers for
what no pack reaches. Part `engine`: ids and logprobs of greedy and sampled requests, bit for bit on the CPU; on another
backend it is the whole check, since packs show nothing of a device. Knows how cases are named; the parts do the work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from equivalence.cases import Case, Options, golden_folder
from equivalence.checks.model import engine, golden, known_answers
from equivalence.errors import SetupError
from equivalence.findings import Findings

DEFAULT_ENGINE_CASES = 16


def cases(options: Options) -> Iterable[Case]:
    """Known answers, one case a pack and mode, then `options.cases` generated ones. Raises SetupError without packs."""
    count = DEFAULT_ENGINE_CASES if options.cases is None else options.cases
    generated = engine.cases(options.seed, count)
    if options.backend != "cpu":
        return generated
    return itertools.chain([known_answers.case()], golden.cases(golden_folder()), generated)


def run(case: Case, options: Options) -> Findings:
    """Run one case of either part."""
    part = case.params.get("part")
    if part == "known_answers":
        return known_answers.run()
    if part == "golden":
        return golden.run(case, golden_folder())
    if part == "engine":
        return engine.run(case, options)
    raise SetupError(f"case {case.name} of check model: unknown part {part!r}")


def shrink(case: Case, options: Options) -> Case:
    """A smaller case that fails alike, where there is one."""
    return engine.shrink(case, options) if case.params.get("part") == "engine" else case
