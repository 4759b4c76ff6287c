"""Compares what two runs gave a user: ids, logprob bits and ranks, text, why each completion ended. Knows no model."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from equivalence.findings import Findings
from reference.spec import CompletionOutput, Logprob, RequestOutput

Entries = Sequence[Mapping[int, Logprob] | None] | None


def compare(findings: Findings, item: str, got: RequestOutput, want: RequestOutput) -> None:
    """Compare one request: ids, logprob bits and ranks, text, and why each completion ended; the prompt's logprobs."""
    if got.prompt_logprobs is not None or want.prompt_logprobs is not None:
        findings.comparisons += 1
        detail = _first_entry(got.prompt_logprobs, want.prompt_logprobs)
        if detail:
            findings.differ(f"{item}, prompt", "values", detail)
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
    detail = _first_entry(got.logprobs, want.logprobs)
    if detail:
        return detail
    for name in ("cumulative_logprob", "text", "finish_reason", "stop_reason"):
        if getattr(got, name) != getattr(want, name):
            return f"{name} {getattr(got, name)!r}, want {getattr(want, name)!r}"
    return ""


def _first_entry(got: Entries, want: Entries) -> str:
    """Where the logprobs of two token sequences first differ, or empty."""
    mine, theirs = got or [], want or []
    if (got is None) != (want is None) or len(mine) != len(theirs):
        return f"{len(mine)} logprobs, want {len(theirs)}"
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if _exact(one) != _exact(other):
            return f"logprobs of token {place} differ: {one}, want {other}"
    return ""


def _exact(entries: Mapping[int, Logprob] | None) -> dict[int, tuple[bytes, int]] | None:
    return None if entries is None else {token: (_bits(entry.logprob), entry.rank) for token, entry in entries.items()}


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def _first(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
