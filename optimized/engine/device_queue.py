"""Work for the device, one piece after another: at once, or on a thread of its own while the caller goes on.

On the CPU that thread is the device; the order of the queue is what a stream's order is on an accelerator. There a job
only launches, on the caller's thread, and what it returns holds what the device has yet to compute: jobs do not wait
for it, whoever needs it on the host does (worker/transfer.py). Knows nothing about what the pieces compute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

from optimized.worker.transfer import no_waits

Result = TypeVar("Result")


class DeviceQueue:
    """A first-in, first-out queue of jobs. What a job raises, `result()` of its future raises (`submit`, without a
    thread)."""

    def __init__(self, *, threaded: bool, guarded: bool = False) -> None:
        """
        Args:
            threaded: jobs run on a thread of their own. guarded: a job that waits for a CUDA device raises.
        """
        self._launching = no_waits if guarded else nullcontext
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counterpoint-device") if threaded else None
        self._pending: deque[Future[Any]] = deque()

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        """Queues a job. It may wait for the futures of jobs before it, which are done by then."""
        if self._thread is None:
            done: Future[Result] = Future()
            with self._launching():
                done.set_result(job())
            return done
        while self._pending and self._pending[0].done():
            self._pending.popleft()
        self._pending.append(self._thread.submit(job))
        return self._pending[-1]

    def cancel(self) -> None:
        """Drops the jobs that have not begun. One that has begun ends before any job that is submitted from now on."""
        while self._pending:
            self._pending.popleft().cancel()
