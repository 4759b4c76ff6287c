"""The progress bar of a call: requests done, and tokens per second. Knows counts only; writes to stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from optimized.engine.statistics import Statistics


class Progress:
    """A tqdm bar over `total` requests that shows the rate of generated tokens; nothing at all if not enabled."""

    def __init__(self, total: int | None, statistics: Statistics, *, enabled: bool, done: int = 0) -> None:
        """
        Args:
            total: requests, None: unknown.
            done: requests that were done before.
        """
        self._statistics = statistics
        self._first_tokens = statistics.generated_tokens
        self._start = time.monotonic()
        self._bar = None
        if enabled:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, initial=done, desc="requests", unit="req", file=sys.stderr, dynamic_ncols=True
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.close()

    def step(self, finished: int) -> None:
        """One more step, in which `finished` requests were completed."""
        if self._bar is not None:
            self._show()
            self._bar.update(finished)

    def _show(self) -> None:
        if self._bar is not None:
            tokens = self._statistics.generated_tokens - self._first_tokens
            seconds = max(time.monotonic() - self._start, 1e-9)
            self._bar.set_postfix_str(f"{tokens / seconds:.1f} tokens/s", refresh=False)
