"""Who holds what, as the core's getters tell after every call, and what the steps in flight may still touch.

Knows requests, lives, pages and slots; judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from equivalence.simulator.plan_rows import PlanRows


@dataclass
class Holding:
    """What a request holds in one life, from admission to release. has_run: a step of this life was launched."""

    life: int
    slot: int
    pages: list[int]
    has_run: bool = False


@dataclass
class Use:
    """What one request uses in a step in flight."""

    request_id: int
    life: int
    slot: int
    pages: list[int]


class Ledger:
    """holders: by request, oldest first; moved: requests whose slot changed while held."""

    def __init__(self, core: Any) -> None:
        self.core = core
        self.holders: dict[int, Holding] = {}
        self.moved: list[tuple[int, int, int]] = []
        self.order_before: list[int] = []
        self.in_flight: list[tuple[PlanRows, list[Use]]] = []
        self._lives = 0

    def refresh(self) -> list[int]:
        """Read the core again. Returns live requests that held pages before and hold none now, oldest first."""
        core, before = self.core, self.holders
        self.order_before = list(before)
        self.holders = {}
        live = core.request_ids().tolist()
        for key in live[: core.num_running]:
            slot, pages = core.slot(key), core.pages(key).tolist()
            holding = before.get(key)
            if holding is None:
                self._lives += 1
                holding = Holding(self._lives, slot, pages)
            elif holding.slot != slot:
                self.moved.append((key, holding.slot, slot))
            holding.pages = pages
            self.holders[key] = holding
        if len(before) == len(self.holders) or not before:
            return []
        alive = set(live)
        return [key for key in before if key not in self.holders and key in alive]

    def launch(self, plan: PlanRows) -> None:
        """A step begins to use what its requests hold."""
        uses = []
        for key in plan.request_ids:
            holding = self.holders[key]
            holding.has_run = True
            uses.append(Use(key, holding.life, holding.slot, list(holding.pages)))
        self.in_flight.append((plan, uses))

    def land(self) -> None:
        """The oldest step in flight is committed or discarded."""
        del self.in_flight[0]

    def end_lives(self) -> None:
        """All that was computed is lost."""
        self.holders = {}

    def in_flight_resources(self) -> tuple[dict[int, int], dict[int, int]]:
        """Pages and slots that steps in flight use, each with the life that uses it."""
        pages: dict[int, int] = {}
        slots: dict[int, int] = {}
        for _, uses in self.in_flight:
            for use in uses:
                slots[use.slot] = use.life
                for page in use.pages:
                    pages[page] = use.life
        return pages, slots

    def pages_in_use(self) -> set[int]:
        """Pages that a request holds or a step in flight uses."""
        return self.in_flight_resources()[0].keys() | {p for holding in self.holders.values() for p in holding.pages}

    def zombies(self, plan: PlanRows) -> list[int]:
        """Indices of the plan whose request is gone, or lost what it held when the step was launched."""
        uses = next(uses for launched, uses in self.in_flight if launched is plan)
        return [
            index
            for index, use in enumerate(uses)
            if use.request_id not in self.holders or self.holders[use.request_id].life != use.life
        ]

    def promised(self, request_id: int) -> bool:
        """Whether a step in flight has a row of this request."""
        return any(request_id in plan.request_ids for plan, _ in self.in_flight)

    def settled(self, request_id: int) -> int:
        """Committed tokens of a request."""
        return int(self.core.tokens(request_id).size)
