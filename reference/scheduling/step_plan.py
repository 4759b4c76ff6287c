"""What one forward step does, as plain lists: the reference's counterpart of the core's flat arrays.

Knows requests' rows; knows nothing about why they were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from reference.scheduling.request import Request


@dataclass
class StepPlan:
    """One forward step of R requests and N rows; fields as in the stub of `optimized._core`.

    requests, lives: the requests and their lives when they were scheduled, for commit; owed_pages: pages that requests
    left out of the plan wait for.
    """

    kind: str
    step_id: int
    request_ids: list[int] = field(default_factory=list)  # [R]
    slots: list[int] = field(default_factory=list)  # [R]
    query_start: list[int] = field(default_factory=lambda: [0])  # [R + 1]
    positions: list[int] = field(default_factory=list)  # [N]
    tokens: list[int] = field(default_factory=list)  # [N]
    kv_lens: list[int] = field(default_factory=list)  # [R]
    page_table: list[list[int]] = field(default_factory=list)  # [R, P]
    sample_rows: list[int] = field(default_factory=list)  # [R]
    fresh: list[bool] = field(default_factory=list)  # [R]
    replay_starts: list[int] = field(default_factory=list)  # [R]
    previous_rows: list[int] = field(default_factory=list)  # [R]
    requests: list[Request] = field(default_factory=list)  # [R]
    lives: list[int] = field(default_factory=list)  # [R]
    owed_pages: int = 0

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.request_ids)

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.tokens)

    def append(self, request: Request, start: int, tokens: list[int], sampled: bool, previous_row: int) -> None:
        """Add the rows of one request: `tokens` at positions start, start + 1, ..."""
        first, last = self.num_rows, self.num_rows + len(tokens) - 1
        sample_row = first if self.kind == "decode" else last
        self.request_ids.append(request.request_id)
        self.slots.append(request.slot)
        self.sample_rows.append(sample_row if sampled else -1)
        self.positions.extend(range(start, start + len(tokens)))
        self.tokens.extend(tokens)
        self.query_start.append(self.num_rows)
        self.kv_lens.append(start + len(tokens))
        self.page_table.append(list(request.pages))
        self.fresh.append(request.fresh)
        self.replay_starts.append(request.replay_start)
        self.previous_rows.append(previous_row)
        self.requests.append(request)
        self.lives.append(request.life)

    def pad_page_table(self) -> None:
        """Make the rows of the page table equally long, with 0 for no page."""
        width = max([1, *(len(row) for row in self.page_table)])
        self.page_table = [row + [0] * (width - len(row)) for row in self.page_table]

    def is_live(self, index: int) -> bool:
        """Whether the index-th request still has the life in which it was scheduled; else its rows are zombies."""
        return self.requests[index].life == self.lives[index]

    def rows_of(self, index: int) -> int:
        """How many rows the index-th request has."""
        return self.query_start[index + 1] - self.query_start[index]
