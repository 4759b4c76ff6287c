"""Part `engine` of check `model`: ids and logprobs of the engine against the reference, bit for bit, on the CPU.

A case is one batch of requests through one engine. Knows how to build both sides and compare their outputs; the
batches come from `equivalence.generators`.
"""

from __future__ import annotations

import functools
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from equivalence.cases import Case, Options, derived_seed
from equivalence.findings import Findings
from equivalence.generators import batches
from equivalence.generators.configs import random_config
from optimized import LLM, SamplingParams
from reference import tiny
from reference.checkpoint import load_checkpoint
from reference.model import ReferenceModel
from reference.spec import CompletionOutput, RequestOutput
from reference.tiny.build import random_checkpoint

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


def cases(seed: int, count: int) -> list[Case]:
    """`count` cases, every fourth on the bundled checkpoint, the others on random ones."""
    return [_case(seed, number) for number in range(count)]


def _case(seed: int, number: int) -> Case:
    bundled = number % 4 == 3
    params: dict[str, Any] = {
        "part": "engine",
        "model": "tiny" if bundled else derived_seed("config", seed, number // CASES_PER_CONFIG),
        "batch": derived_seed("batch", seed, number),
        "engine": dict(ENGINES[number % len(ENGINES)]),
        "plain": number % 8 == 0,
    }
    return Case("model", f"engine/{number:05d}-{'tiny' if bundled else 'random'}", params)


@dataclass(frozen=True)
class Voices:
    """Both sides of one checkpoint. folder: where it lies; model, tokenizer: the reference's."""

    folder: Path
    model: ReferenceModel
    tokenizer: Tokenizer


def run(case: Case, options: Options) -> Findings:
    """Generate one batch on both sides and compare everything that a user sees."""
    findings = Findings()
    voices = _bundled() if case.params["model"] == "tiny" else _random(int(cast(int, case.params["model"])))
    vocab = voices.model.config.vocab_size
    longest, most = (130, 8) if case.params["plain"] or case.params["model"] == "tiny" else (200, 24)
    seed, largest = int(cast(int, case.params["batch"])), 3 if case.params["plain"] else 16
    requests = batches.random_batch(seed, vocab, longest, most, largest)
    engine = cast("Mapping[str, Any]", case.params["engine"])
    llm = LLM(str(voices.folder), device=options.backend, max_model_len=MAX_MODEL_LEN, **engine)
    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    outputs = llm.generate(prompts, [SamplingParams(**request["params"]) for request in requests], use_tqdm=False)
    for number, (request, got) in enumerate(zip(requests, outputs, strict=True)):
        guesses = [] if case.params["plain"] else [completion.token_ids for completion in got.outputs]
        want = batches.expected(voices.model, voices.tokenizer, request, guesses, MAX_MODEL_LEN)
        compare(findings, f"request {number}", got, want)
    return findings.close()


def compare(findings: Findings, item: str, got: RequestOutput, want: RequestOutput) -> None:
    """Compare the completions of one request: ids, logprob bits and ranks, text, and why each ended."""
    if len(got.outputs) != len(want.outputs):
        findings.differ(item, "values", f"{len(got.outputs)} completions, want {len(want.outputs)}")
        return
    for mine, theirs in zip(got.outputs, want.outputs, strict=True):
        findings.comparisons += 1
        detail = first_difference(mine, theirs)
        if detail:
            findings.differ(f"{item}, completion {theirs.index}", "values", detail)


def first_difference(got: CompletionOutput, want: CompletionOutput) -> str:
    """Where two completions first differ, or empty."""
    if got.error or got.token_ids != want.token_ids:
        place = _first(got.token_ids, want.token_ids)
        return f"ids differ from token {place} on: {got.token_ids[place:][:4]}, want {want.token_ids[place:][:4]}" + (
            f" ({got.error})" if got.error else ""
        )
    mine, theirs = got.logprobs or [], want.logprobs or []
    if (got.logprobs is None) != (want.logprobs is None) or len(mine) != len(theirs):
        return f"{len(mine)} logprobs, want {len(theirs)}"
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if {token: (_bits(entry.logprob), entry.rank) for token, entry in one.items()} != {
            token: (_bits(entry.logprob), entry.rank) for token, entry in other.items()
        }:
            return f"logprobs of token {place} differ: {one}, want {other}"
    for name in ("cumulative_logprob", "text", "finish_reason", "stop_reason"):
        if getattr(got, name) != getattr(want, name):
            return f"{name} {getattr(got, name)!r}, want {getattr(want, name)!r}"
    return ""


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _first(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _load(folder: Path) -> Voices:
    checkpoint = load_checkpoint(folder)
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map)
    return Voices(folder, model, Tokenizer.from_file(str(folder / "tokenizer.json")))


@functools.cache
def _bundled() -> Voices:
    return _load(Path(tiny.__file__).parent)


_SCRATCH: list[tempfile.TemporaryDirectory[str]] = []


@functools.lru_cache(maxsize=2)
def _random(seed: int) -> Voices:
    scratch = tempfile.TemporaryDirectory(prefix="equivalence-")
    _SCRATCH.append(scratch)
    folder = Path(scratch.name)
    random_checkpoint(random_config(seed), seed % 2**31, folder)
    return _load(folder)
