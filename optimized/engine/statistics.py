"""What the engine has done so far, in numbers, and the line that it logs.

Knows counts and clocks; knows nothing about how a step is made.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from optimized.engine.acceptance import Acceptance
from reference.spec.outputs import RequestOutput

_log = logging.getLogger(__name__)


@dataclass
class Statistics:
    """Counts since the engine was made. A token is counted when its step is committed.

    acceptance: of drafts.
    """

    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    generated_tokens: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0
    failed_requests: int = 0
    acceptance: Acceptance = field(default_factory=Acceptance)
    _window_start: float = field(default_factory=time.monotonic, repr=False)
    _window_tokens: int = field(default=0, repr=False)
    _window_steps: int = field(default=0, repr=False)

    def count_step(self, kind: str, rows: int, generated: int) -> None:
        """One committed step of `rows` token rows that gave `generated` tokens."""
        self.steps += 1
        if kind == "prefill":
            self.prefill_rows += rows
        else:
            self.decode_rows += rows
        self.generated_tokens += generated

    def count_output(self, output: RequestOutput) -> None:
        """One complete request: failed if any of its samples has an error, else aborted if any was, else finished."""
        reasons = {one.finish_reason for one in output.outputs}
        if "error" in reasons:
            self.failed_requests += 1
        elif "abort" in reasons:
            self.aborted_requests += 1
        else:
            self.finished_requests += 1

    def log(self, running: int, waiting: int, free_pages: int, usable_pages: int) -> None:
        """One line about the steps since the last one."""
        now = time.monotonic()
        seconds = max(now - self._window_start, 1e-9)
        _log.info(
            "%.1f steps/s, %.1f tokens/s, running %d, waiting %d, pages free %d of %d, finished %d, failed %d%s",
            (self.steps - self._window_steps) / seconds,
            (self.generated_tokens - self._window_tokens) / seconds,
            running,
            waiting,
            free_pages,
            usable_pages,
            self.finished_requests,
            self.failed_requests,
            f", {self.acceptance.describe()}" if self.acceptance.blocks else "",
        )
        self._window_start, self._window_tokens, self._window_steps = now, self.generated_tokens, self.steps
