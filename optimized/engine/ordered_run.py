"""Runs a stream of requests through the engine and yields their outputs in the order of the requests.

Knows how much to queue at a time, so that a file of any length runs in bounded memory; knows nothing about where
requests come from or where outputs go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable

from optimized.engine.door import Refusal, Request
from optimized.engine.engine import Engine
from reference.spec.outputs import RequestOutput

# Queue ahead of what runs, and let this many finished outputs wait for a slow one before them; both per running
# sequence.
_QUEUE_FACTOR = 2
_WINDOW_FACTOR = 16


def run_in_order(
    engine: Engine,
    entries: Iterable[Request | Refusal],
    max_num_seqs: int,
    on_step: Callable[[int], None] | None = None,
) -> Generator[RequestOutput, None, None]:
    """One output for each entry, in order; ids of the entries must differ.

    However this ends (all done, an exception, the consumer stops), the engine is left without requests.

    Args:
        entries: taken from lazily.
        max_num_seqs: as in the engine's options.
        on_step: called after every step with the number of requests that it completed.
    """
    source = iter(entries)
    queue: deque[str] = deque()
    done: dict[str, RequestOutput] = {}
    exhausted = clean = False
    try:
        while not exhausted or queue:
            before = len(done)
            while not exhausted and _has_room(engine, len(queue), max_num_seqs):
                entry = next(source, None)
                if entry is None:
                    exhausted = True
                    break
                queue.append(entry.request_id)
                if isinstance(entry, Refusal):
                    done[entry.request_id] = engine.refuse(entry)
                else:
                    engine.add(entry)
            if engine.num_live:
                done.update((output.request_id, output) for output in engine.step())
            if on_step is not None:
                on_step(len(done) - before)
            while queue and queue[0] in done:
                yield done.pop(queue.popleft())
        clean = True
    finally:
        if not clean:
            engine.abort_all()


def _has_room(engine: Engine, queued: int, max_num_seqs: int) -> bool:
    return engine.num_scheduled < _QUEUE_FACTOR * max_num_seqs and queued < _WINDOW_FACTOR * max_num_seqs
