"""Compiling off the step path: a few processes, a time limit for each grammar, and a cache of what was compiled.

Knows jobs, processes and clocks; knows nothing about requests or masks. A grammar that takes too long costs its
process, which is ended; one that crashes it too; the next grammar gets a new one. Jobs for the same language are one.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import select
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimized.engine.structured.language import Kind, Language

if TYPE_CHECKING:
    import xgrammar

    Tokenizers = Mapping[Kind, xgrammar.TokenizerInfo]

START_SECONDS = 120.0
#: Share of the time limit that a grammar has before those that wait behind it get their turn.
FIRST_SHARE = 0.1
#: How often a thread that waits for an answer looks whether others wait for it.
POLL_SECONDS = 0.25

_log = logging.getLogger(__name__)


class Job:
    """A language that is being compiled. When `done`, it has a grammar or an error."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.done = False
        self.grammar: xgrammar.CompiledGrammar | None = None
        self.error: str | None = None
        self.was_deferred = False

    @classmethod
    def failed(cls, language: Language, error: str) -> Job:
        """One that is done, with an error."""
        job = cls(language)
        job.done, job.error = True, error
        return job


class CompilerPool:
    """At most `workers` processes, started when there is work, ended with the pool or the interpreter."""

    def __init__(self, tokenizers: Tokenizers, workers: int, seconds: float, cache_bytes: int) -> None:
        """
        Args:
            tokenizers: what grammars of each kind are compiled for.
            seconds: most time to compile one grammar, the start of a process not counted.
            cache_bytes: most memory of the compiled grammars that are kept, the least recently used go first.
        """
        self._cache: OrderedDict[Language, Job] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._state = _State(tokenizers, seconds)
        self._max_workers = workers
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, self._state.close)

    def submit(self, language: Language) -> Job:
        """The job of a language: one that is done, one that is under way, or a new one."""
        job = self._cache.get(language)
        if job is not None and not (job.done and job.grammar is None):
            self._cache.move_to_end(language)
            return job
        self._trim()
        job = self._cache[language] = Job(language)
        self._state.jobs.put(job)
        if len(self._threads) < self._max_workers:
            thread = threading.Thread(target=_serve, args=(self._state,), name="grammar-compiler", daemon=True)
            self._threads.append(thread)
            thread.start()
        return job

    def wait(self, seconds: float) -> None:
        """Sleeps until a job is done, but not longer than this."""
        with self._state.finished:
            if not self._state.news:
                self._state.finished.wait(seconds)
            self._state.news = False

    def close(self) -> None:
        """Ends the processes. Jobs under way end with an error."""
        self._state.close()

    def _trim(self) -> None:
        """Drops what failed, and the least recently used grammars beyond the limit."""
        for language in [one for one, job in self._cache.items() if job.done and job.grammar is None]:
            del self._cache[language]
        sizes = {one: job.grammar.memory_size_bytes for one, job in self._cache.items() if job.grammar is not None}
        total = sum(sizes.values())
        for language, size in sizes.items():
            if total <= self._cache_bytes:
                break
            total -= size
            del self._cache[language]


class _State:
    """What the threads share with the pool; it outlives the pool only until they have seen that it is closed."""

    def __init__(self, tokenizers: Tokenizers, seconds: float) -> None:
        self.tokenizers = tokenizers
        self.seconds = seconds
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.finished = threading.Condition()
        self.news = False
        self.closed = False
        self.processes: set[_Process] = set()

    def limit(self, job: Job) -> float:
        """Seconds for a job: a part of them while others wait, so that a slow one goes behind these, all the second
        time."""
        return self.seconds if job.was_deferred or self.jobs.empty() else self.seconds * FIRST_SHARE

    def finish(self, job: Job, grammar: Any, error: str | None) -> None:
        with self.finished:
            job.grammar, job.error, job.done = grammar, error, True
            self.news = True
            self.finished.notify_all()

    def close(self) -> None:
        self.closed = True
        for process in list(self.processes):
            process.kill()
        self.jobs.put(None)


def _serve(state: _State) -> None:
    """Compiles jobs, one at a time, until the pool is closed."""
    process: _Process | None = None
    while (job := state.jobs.get()) is not None:
        grammar, error, deferred = None, "the compiler failed", False
        began = -math.inf
        try:
            if process is None:
                process = _Process()
                state.processes.add(process)
                if state.closed:
                    process.kill()
                process.start(state.tokenizers)
            began = time.monotonic()
            answer = process.ask(job, partial(state.limit, job))
            error = answer.get("error", "")
            if not error:
                grammar = _restored(answer["grammar"], state.tokenizers[job.language.kind])
        except (OSError, TimeoutError, ValueError, RuntimeError) as failure:
            if process is not None:
                process.kill()
                state.processes.discard(process)
                process = None
            error = str(failure)
            _log.info("a grammar was given up: %s", error)
            if isinstance(failure, TimeoutError) and time.monotonic() - began < state.seconds:
                deferred = job.was_deferred = True
                state.jobs.put(job)
        finally:
            if not deferred:
                state.finish(job, grammar, error or None)
    if process is not None:
        process.kill()
    state.jobs.put(None)  # for the next thread


def _restored(serialized: str, tokenizer: xgrammar.TokenizerInfo) -> xgrammar.CompiledGrammar:
    import xgrammar

    return xgrammar.CompiledGrammar.deserialize_json(serialized, tokenizer)


class _Process:
    """One compiler process and its pipes."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("compiler_process.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-P", str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the engine
        )
        self._lock = threading.Lock()

    def start(self, tokenizers: Tokenizers) -> None:
        """Hands over the vocabularies and waits until it is ready."""
        infos = {kind: info.serialize_json() for kind, info in tokenizers.items()}
        self._exchange(json.dumps(infos), lambda: START_SECONDS, "the compiler did not start within {:g} s")

    def ask(self, job: Job, limit: Callable[[], float]) -> dict[str, str]:
        """Its answer to a job.

        Args:
            limit: seconds that it has, which may change while it works.

        Raises:
            TimeoutError: none within the limit.
            OSError: the process ended.
        """
        asked = {"kind": job.language.kind, "text": job.language.text}
        return self._exchange(json.dumps(asked), limit, "compiling it took more than {:g} s")

    def _exchange(self, line: str, limit: Callable[[], float], late: str) -> dict[str, str]:
        if self._child.stdin is None or self._child.stdout is None:
            raise OSError("the compiler has no pipes")
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()
        began = time.monotonic()
        received = bytearray()
        while not received.endswith(b"\n"):
            left = began + limit() - time.monotonic()
            if left <= 0:
                raise TimeoutError(late.format(limit()))
            ready, _, _ = select.select([self._child.stdout], [], [], min(left, POLL_SECONDS))
            if not ready:
                continue
            some = os.read(self._child.stdout.fileno(), 1 << 20)
            if not some:
                raise OSError("the compiler's process ended while it compiled it")
            received += some
        answer: dict[str, str] = json.loads(received)
        return answer

    def kill(self) -> None:
        """Ends it at once; again is harmless."""
        with self._lock:
            self._child.kill()
            self._child.wait()
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None and not pipe.closed:
                    try:
                        pipe.close()
                    except OSError:  # unwritten bytes of a pipe that nobody reads
                        continue
