"""How ranks agree on the kind of the next step: one vote, and a second one before a prefill.

Knows what each rank says of itself and how many steps of a kind came last; knows nothing about requests or pages.
Source: serving specification §6.3. Every rank hands in numbers and gets their minimum over all ranks, so that a 0 of
any rank shows, and negated numbers tell what any rank says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reference.scheduling.limits import Limits

Reduce = Callable[[list[int]], list[int]]
"""[n] numbers of this rank -> their minimum over all ranks, element by element."""


@dataclass(frozen=True)
class Ballot:
    """What one rank says: it has requests; it can decode; it wants a prefill; it has a partial prompt; its head is
    overdue and admissible."""

    has_request: bool
    can_decode: bool
    wants_prefill: bool
    has_partial: bool
    has_overdue: bool

    def numbers(self) -> list[int]:
        """Six numbers whose minimum over all ranks is the tally."""
        return [
            -int(self.has_request),
            -int(self.can_decode),
            -int(self.wants_prefill),
            int(self.wants_prefill),
            -int(self.has_partial),
            -int(self.has_overdue),
        ]


@dataclass(frozen=True)
class Tally:
    """What any or all ranks say."""

    any_request: bool
    any_decode: bool
    any_prefill: bool
    all_prefill: bool
    any_partial: bool
    any_overdue: bool

    @classmethod
    def of(cls, numbers: list[int]) -> Tally:
        """Of the minimum over all ranks."""
        request, decode, any_prefill, all_prefill, partial, overdue = numbers
        return cls(request < 0, decode < 0, any_prefill < 0, all_prefill > 0, partial < 0, overdue < 0)


@dataclass
class History:
    """Steps of one kind since the last of the other, alike on all ranks."""

    decodes: int = 0
    prefills: int = 0

    def add(self, kind: str) -> None:
        """A step was launched."""
        if kind == "prefill":
            self.decodes, self.prefills = 0, self.prefills + 1
        else:
            self.decodes, self.prefills = self.decodes + 1, 0


def choose(tally: Tally, history: History, limits: Limits) -> str:
    """`prefill`, `decode`, `idle` (no rank has a request) or `stuck` (requests, and nothing can run)."""
    if not tally.any_request:
        return "idle"
    if not tally.any_decode:
        return "prefill" if tally.any_prefill else "stuck"
    if history.prefills >= limits.max_consecutive_prefills:
        return "decode"
    if tally.any_partial or tally.any_overdue:
        return "prefill"
    if history.decodes > 0 and history.decodes % limits.prefill_any_interval == 0:
        return "prefill" if tally.any_prefill else "decode"
    if history.decodes % limits.prefill_all_interval == 0:
        return "prefill" if tally.all_prefill else "decode"
    return "decode"
