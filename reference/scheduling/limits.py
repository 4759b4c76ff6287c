"""What a scheduler is told once, and the laws between these numbers; knows nothing about where they come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Arguments of the scheduler's constructor, checked.

    Raises ValueError naming the argument, its value and the law.
    """

    num_pages: int
    page_size: int
    num_slots: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    nextn: int
    chunk_grid: int
    max_consecutive_prefills: int
    max_cache_usage: float
    max_in_flight: int
    prefill_all_interval: int
    prefill_any_interval: int
    max_wait_steps: int
    stall_limit: int

    def __post_init__(self) -> None:
        self._check("num_pages", 2)
        self._check("nextn", 0)
        self._check("page_size", self.nextn + 1)
        self._check("num_slots", 2)
        self._check("max_num_seqs", 1)
        self._check("chunk_grid", 1)
        self._check("max_num_batched_tokens", max(self.max_num_seqs * (self.nextn + 1), self.chunk_grid))
        self._check("max_model_len", 2)
        self._check("max_consecutive_prefills", 1)
        self._check("max_in_flight", 1)
        self._check("prefill_all_interval", 1)
        self._check("prefill_any_interval", 1)
        self._check("max_wait_steps", 1)
        self._check("stall_limit", self.prefill_any_interval + 1)
        if not 0 < self.max_cache_usage <= 1:
            raise ValueError(f"max_cache_usage must be in (0, 1], not {self.max_cache_usage}")

    def pages_for(self, length: int) -> int:
        """Pages of a sequence of that many tokens, with room for nextn + 1 more."""
        return -(-(length + self.nextn + 1) // self.page_size)

    def chunk(self, computed: int, length: int, budget: int) -> int:
        """How many tokens of a prompt are next: all that are left, or up to a point of the grid within the budget."""
        left = length - computed
        if left <= budget:
            return left
        end = (computed + budget) // self.chunk_grid * self.chunk_grid
        return max(0, end - computed)

    def _check(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
