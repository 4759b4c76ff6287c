"""A step plan of either scheduler as plain lists, so that both can be compared and executed alike.

Knows the fields of a plan; knows nothing about what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FIELDS = (
    "request_ids",
    "slots",
    "query_start",
    "positions",
    "tokens",
    "kv_lens",
    "page_table",
    "sample_rows",
    "fresh",
    "replay_starts",
    "previous_rows",
)


@dataclass
class PlanRows:
    """Fields as in the stub of `optimized._core`, each a list."""

    kind: str
    step_id: int
    request_ids: list[int]
    slots: list[int]
    query_start: list[int]
    positions: list[int]
    tokens: list[int]
    kv_lens: list[int]
    page_table: list[list[int]]
    sample_rows: list[int]
    fresh: list[bool]
    replay_starts: list[int]
    previous_rows: list[int]

    @classmethod
    def of_core(cls, plan: Any) -> PlanRows:
        """Of the C++ core's arrays."""
        return cls(plan.kind, plan.step_id, *[getattr(plan, name).tolist() for name in FIELDS])

    def differences(self, other: Any) -> list[str]:
        """Each field in which the other plan differs, with both values."""
        return [
            f"{name}: {getattr(self, name)} and {getattr(other, name)}"
            for name in ("kind", "step_id", *FIELDS)
            if getattr(self, name) != getattr(other, name)
        ]
