"""Part `engine` of check `model`: ids and logprobs of the engine against the reference, on the CPU bit for bit.

A case is one batch of requests through one engine, whole in its parameters, so that a replay does not depend on how
cases are drawn. Knows the engine's options; the batches come from `equivalence.generators`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

from equivalence import outputs
from equivalence.cases import Case, Options, derived_seed
from equivalence.findings import Findings
from equivalence.generators import batches, checkpoints
from equivalence.generators.configs import random_config
from equivalence.shrinking import differs
from equivalence.tolerances import of_backend
from optimized import LLM

MAX_MODEL_LEN = 256

CASES_PER_CONFIG = 4
"""How many cases in a row share a random configuration, so that most of the time is spent comparing."""

ENGINES: tuple[dict[str, int], ...] = (
    {"page_size": 96},
    {"page_size": 96, "max_num_seqs": 16, "max_num_batched_tokens": 16},
    {"page_size": 12, "max_num_seqs": 3},
    {"page_size": 48, "max_num_seqs": 1, "max_num_batched_tokens": 5},
    {"page_size": 24, "max_num_seqs": 8, "max_num_batched_tokens": 31},
)
"""Options of the engine under test; a page holds whole groups of every ratio up to 4."""

TINY_VOCABULARY = 2048
"""Ids that the bundled checkpoint knows; drawing a batch does not load it."""


def cases(seed: int, count: int) -> Iterator[Case]:
    """`count` cases, every sixteenth on the bundled checkpoint, the others on random ones."""
    return (one_case(seed, number) for number in range(count))


def one_case(seed: int, number: int) -> Case:
    """Case `number` of a seed."""
    bundled, plain = number % 16 == 3, number % 8 == 0
    params: dict[str, Any] = {"part": "engine", "engine": dict(ENGINES[number % len(ENGINES)]), "plain": plain}
    vocabulary = TINY_VOCABULARY
    if not bundled:
        drawn = derived_seed("config", seed, number // CASES_PER_CONFIG)
        config = random_config(drawn)
        params |= {"config": config.to_dict(), "weights": drawn % 2**31}
        vocabulary = config.vocab_size
    longest, most = (130, 8) if plain or bundled else (200, 16)
    largest = 3 if plain else 16
    params["requests"] = batches.random_batch(derived_seed("batch", seed, number), vocabulary, longest, most, largest)
    return Case("model", f"engine/{number:05d}-{'tiny' if bundled else 'random'}", params)


def run(case: Case, options: Options) -> Findings:
    """Generate one batch on both sides and compare everything that a user sees.

    Without "config" the model is the bundled one. "plain": the reference computes one forward pass a token.
    """
    params = cast("dict[str, Any]", case.params)
    voices = checkpoints.of_case(params)
    requests: Sequence[batches.Request] = params["requests"]
    llm = LLM(str(voices.folder), device=options.backend, max_model_len=MAX_MODEL_LEN, **params["engine"])
    made = batches.ask(llm, requests)
    sequences = itertools.chain.from_iterable(map(batches.whole_sequences, requests, made))
    runner = voices.model if params["plain"] else batches.OnePass(voices.model, sequences)
    findings = Findings()
    for number, got in enumerate(made):
        want = batches.expected(runner, voices.tokenizer, requests[number], MAX_MODEL_LEN)
        outputs.compare(findings, f"request {number}", got, want, of_backend(options.backend))
    return findings.close()


def shrink(case: Case, options: Options) -> Case:
    """The smallest of a few smaller batches that still differs: one request, half of them, or all."""
    params = cast("dict[str, Any]", case.params)
    requests: list[batches.Request] = params["requests"]
    middle = len(requests) // 2
    for fewer in (*([request] for request in requests[:4]), requests[:middle], requests[middle:]):
        smaller = Case(case.check, case.name, {**params, "requests": cast("Any", fewer)})
        if 0 < len(fewer) < len(requests) and differs(run, smaller, options):
            return smaller
    return case
