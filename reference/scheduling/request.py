"""A request as the scheduler sees it: tokens, pages, slot, and how far it has got.

Knows lengths; knows nothing about pools, queues or the order of requests.
Source: serving specification §6.1 (states), §6.5 and §6.6 (what a step may write).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    """One live request.

    tokens: prompt and committed output; prompt_len: of the prompt as given; limit: most tokens it can have;
    replay_start: fixed for life; state: `waiting`, `prefill` or `running`; pages, slot: what it holds (0: no slot);
    computed: positions whose KV is in the pages, as far as commits have told; drafts: to verify in the next step;
    fresh: the slot was handed out and no step has used it; promised: for each step in flight, how many tokens it may
    add; life: counts preemptions and discards, so that a row scheduled before one is known to be a zombie.
    """

    request_id: int
    tokens: list[int]
    prompt_len: int
    limit: int
    replay_start: int
    state: str = "waiting"
    pages: list[int] = field(default_factory=list)
    slot: int = 0
    computed: int = 0
    drafts: list[int] = field(default_factory=list)
    fresh: bool = False
    promised: dict[int, int] = field(default_factory=dict)
    life: int = 0

    @property
    def prefill_len(self) -> int:
        """Positions that prefill steps compute: the prompt, and of a request that comes back all but its last token."""
        return len(self.tokens) - (1 if len(self.tokens) > self.prompt_len else 0)

    @property
    def longest(self) -> int:
        """Length if every step in flight adds all that it may, as if there were no limit."""
        return len(self.tokens) + sum(self.promised.values())

    @property
    def shortest(self) -> int:
        """Length if every step in flight adds one token."""
        return len(self.tokens) + len(self.promised)

    def forget_progress(self) -> None:
        """Back to waiting with the tokens kept: everything is computed again from position 0."""
        self.state = "waiting"
        self.pages = []
        self.slot = 0
        self.computed = 0
        self.drafts = []
        self.fresh = False
        self.promised = {}
        self.life += 1
