"""Compares what two runs gave a user: ids, logprobs and ranks, text, why each completion ended. Knows no model.

Logprobs are compared in bits, or under the row of the tolerance table that is named; all else must be equal.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence

from equivalence.findings import Findings
from equivalence.tolerances import tolerance
from reference.spec import CompletionOutput, Logprob, RequestOutput

Entries = Sequence[Mapping[int, Logprob] | None] | None


def compare(findings: Findings, item: str, got: RequestOutput, want: RequestOutput, row: str = "exact") -> None:
    """Compare one request: ids, logprobs and ranks, text, and why each completion ended; the prompt's logprobs.

    row: of the tolerance table, for each logprob; a sum of n may be n times as far off. Raises KeyError without one.
    """
    if got.prompt_logprobs is not None or want.prompt_logprobs is not None:
        findings.comparisons += 1
        detail = _first_entry(got.prompt_logprobs, want.prompt_logprobs, row)
        if detail:
            findings.differ(f"{item}, prompt", "values", detail)
    if len(got.outputs) != len(want.outputs):
        findings.differ(item, "values", f"{len(got.outputs)} completions, want {len(want.outputs)}")
        return
    for mine, theirs in zip(got.outputs, want.outputs, strict=True):
        findings.comparisons += 1
        detail = first_difference(mine, theirs, row)
        if detail:
            findings.differ(f"{item}, completion {theirs.index}", "values", detail)


def first_difference(got: CompletionOutput, want: CompletionOutput, row: str = "exact") -> str:
    """Where two completions first differ, or empty. row: as in `compare`."""
    if got.error or got.token_ids != want.token_ids:
        place = _first(got.token_ids, want.token_ids)
        return f"ids differ from token {place} on: {got.token_ids[place:][:4]}, want {want.token_ids[place:][:4]}" + (
            f" ({got.error})" if got.error else ""
        )
    detail = _first_entry(got.logprobs, want.logprobs, row)
    if detail:
        return detail
    allowed = tolerance(row).value * len(want.token_ids)
    if not _near(got.cumulative_logprob, want.cumulative_logprob, allowed):
        return f"cumulative_logprob {got.cumulative_logprob!r}, want {want.cumulative_logprob!r}"
    for name in ("text", "finish_reason", "stop_reason"):
        if getattr(got, name) != getattr(want, name):
            return f"{name} {getattr(got, name)!r}, want {getattr(want, name)!r}"
    return ""


def _first_entry(got: Entries, want: Entries, row: str) -> str:
    """Where the logprobs of two token sequences first differ, or empty."""
    mine, theirs = got or [], want or []
    if (got is None) != (want is None) or len(mine) != len(theirs):
        return f"{len(mine)} logprobs, want {len(theirs)}"
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        if not _same(one, other, tolerance(row).value):
            return f"logprobs of token {place} differ: {one}, want {other}"
    return ""


def _same(got: Mapping[int, Logprob] | None, want: Mapping[int, Logprob] | None, allowed: float) -> bool:
    if got is None or want is None:
        return got is want
    return got.keys() == want.keys() and all(
        got[token].rank == entry.rank and _near(got[token].logprob, entry.logprob, allowed)
        for token, entry in want.items()
    )


def _near(got: float | None, want: float | None, allowed: float) -> bool:
    """Equal bits, or not further apart than allowed; NaN is near nothing, for it shows a row that was not computed."""
    if got is None or want is None:
        return got is want
    if math.isnan(got):
        return False
    return struct.pack("<d", got) == struct.pack("<d", want) or (allowed > 0 and abs(got - want) <= allowed)


def _first(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
