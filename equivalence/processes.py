"""Runs cases on several processes and gives the results in the order of the cases, as one process would.

Knows processes and pipes; knows no check. A process takes a block of cases at a time, because neighbours share a model.
One that dies is a result of the case that it was running; another goes on behind that case.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

from equivalence.cases import Case
from equivalence.errors import SetupError

MOST_IN_A_BLOCK = 24

BLOCKS_A_PROCESS = 4
"""At least so many, where there are enough cases, so that all processes end at about the same time."""

_PATIENCE_SECONDS = 10

Result = TypeVar("Result")


def in_order(
    prepare: Callable[[], Callable[[Case], Result]],
    cases: Sequence[Case],
    jobs: int,
    died: Callable[[Case, str], Result],
) -> Iterator[Result]:
    """The result of every case, in the order of the cases.

    Args:
        prepare: called once in each process, gives what makes a result of a case; it and the results are pickled.
        cases: each is worked on once.
        jobs: the most processes, >= 1.
        died: the result of a case at which its process died, from the case and how that ended.
    Raises: SetupError where a process ends before its first case. However the iteration ends, it ends the processes.
    """
    blocks = blocks_of(len(cases), jobs)
    pool: list[_Process[Result]] = []
    done: dict[int, Result] = {}
    try:
        pool += [_Process(prepare) for _ in range(min(jobs, len(blocks)))]
        for place in range(len(cases)):
            while place not in done:
                for process in pool:
                    if blocks and not process.block:
                        process.take(blocks.popleft(), cases)
                busy = [process for process in pool if process.block]
                ready = wait([process.connection for process in busy])
                for process in (each for each in busy if each.connection in ready):
                    number = process.block.popleft()
                    try:
                        done[number] = process.connection.recv()
                    except (EOFError, OSError):
                        done[number] = died(cases[number], process.end())
                        if process.block:
                            blocks.appendleft(process.block)
                        pool[pool.index(process)] = _Process(prepare)
            yield done.pop(place)
    finally:
        for process in pool:
            process.stop()
        for process in pool:
            process.end()


class _Process(Generic[Result]):
    """One process. block: numbers of the cases that it has been given and not yet answered, in its order."""

    def __init__(self, prepare: Callable[[], Callable[[Case], Result]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.block: deque[int] = deque()
        self._begun = False
        self._process = context.Process(target=_serve, args=(theirs, prepare))
        self._process.start()
        theirs.close()

    def take(self, block: deque[int], cases: Sequence[Case]) -> None:
        """Give it cases to answer. Raises SetupError where it never came up."""
        try:
            if not self._begun:
                self.connection.recv()
        except EOFError as error:
            raise SetupError(f"a process for the cases {self.end()} before its first case") from error
        self._begun = True
        self.block = block
        self.connection.send([cases[number] for number in block])

    def stop(self) -> None:
        """Ask it to end, whatever it does."""
        self._process.terminate()

    def end(self) -> str:
        """Wait until it has ended, but not for long. Returns how it ended."""
        self._process.join(_PATIENCE_SECONDS)
        self._process.kill()
        self._process.join()
        self.connection.close()
        status = self._process.exitcode or 0
        return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _serve(connection: Connection, prepare: Callable[[], Callable[[Case], Result]]) -> None:
    """What a process does: answer blocks until nobody asks, and leave in order when it is told to end.

    Ctrl-C reaches every process of a terminal; it is the business of the one that began the others.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    import torch

    torch.set_num_threads(1)
    work = prepare()
    connection.send(None)
    while True:
        try:
            block = connection.recv()
        except EOFError:
            return
        for case in block:
            connection.send(work(case))


def blocks_of(count: int, jobs: int) -> deque[deque[int]]:
    """The numbers below `count` in blocks of neighbours."""
    size = min(MOST_IN_A_BLOCK, max(1, count // (jobs * BLOCKS_A_PROCESS)))
    return deque(deque(range(first, min(count, first + size))) for first in range(0, count, size))
