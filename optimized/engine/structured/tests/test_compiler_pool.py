"""What compiling costs others: nothing, whatever a grammar does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import xgrammar

from optimized.engine.structured.compiler_pool import CompilerPool, Job
from optimized.engine.structured.language import Kind, Language
from optimized.engine.structured.tests.test_json_schema_keywords import tokens

TOKENIZERS: dict[Kind, xgrammar.TokenizerInfo] = {"json": tokens(), "regex": tokens(), "ebnf": tokens()}


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilerPool]:
    one = CompilerPool(TOKENIZERS, workers=1, seconds=20, cache_bytes=2**20)
    yield one
    one.close()


def settle(pool: CompilerPool, *jobs: Job) -> None:
    deadline = time.monotonic() + 120
    while not all(job.done for job in jobs) and time.monotonic() < deadline:
        pool.wait(0.1)


def test_good_and_bad_grammars_are_told_apart_and_equal_ones_compiled_once(pool: CompilerPool) -> None:
    good, again = pool.submit(Language("regex", "a+")), pool.submit(Language("regex", "a+"))
    bad = {
        "root ::= x": "not defined",
        "": "root rule",
        "root ::= (": "EBNF",
        'root ::= root "a"': "no token begins",
    }
    jobs = [pool.submit(Language("ebnf", text)) for text in bad]
    settle(pool, good, *jobs)
    assert again is good
    assert good.grammar is not None
    for job, message in zip(jobs, bad.values(), strict=True):
        assert job.grammar is None
        assert message in (job.error or "")
    assert pool.submit(Language("regex", "a+")) is good


def test_what_the_compiler_only_warns_of_is_an_error(pool: CompilerPool) -> None:
    job = pool.submit(Language("regex", "a$b"))
    settle(pool, job)
    assert "'$' should be at the end" in (job.error or "")


def test_a_crash_costs_its_own_grammar_only(pool: CompilerPool) -> None:
    settle(pool, pool.submit(Language("regex", "first")))
    (process,) = pool._state.processes
    os.kill(process._child.pid, signal.SIGSTOP)  # so that the next one is surely in its hands
    crashed, after = pool.submit(Language("regex", "crash")), pool.submit(Language("regex", "after"))
    time.sleep(0.2)
    os.kill(process._child.pid, signal.SIGKILL)
    settle(pool, crashed, after)
    assert "ended" in (crashed.error or "")
    assert after.grammar is not None
    retried = pool.submit(Language("regex", "crash"))
    settle(pool, retried)
    assert retried.grammar is not None


def test_a_late_grammar_is_given_up_and_the_next_one_compiled(pool: CompilerPool) -> None:
    settle(pool, pool.submit(Language("regex", "first")))
    (process,) = pool._state.processes
    pool._state.seconds = 0.5
    os.kill(process._child.pid, signal.SIGSTOP)
    late = pool.submit(Language("regex", "late"))
    settle(pool, late)
    pool._state.seconds = 20
    after = pool.submit(Language("regex", "next"))
    settle(pool, after)
    assert late.error == "compiling it took more than 0.5 s"
    assert after.grammar is not None


def test_a_slow_grammar_goes_behind_those_that_wait(pool: CompilerPool) -> None:
    settle(pool, pool.submit(Language("regex", "first")))
    (process,) = pool._state.processes
    os.kill(process._child.pid, signal.SIGSTOP)
    slow, quick = pool.submit(Language("regex", "slow")), pool.submit(Language("regex", "quick"))
    settle(pool, quick)
    assert quick.grammar is not None
    assert slow.was_deferred
    settle(pool, slow)
    assert slow.grammar is not None


def test_the_cache_keeps_what_was_used_last_within_its_bytes() -> None:
    pool = CompilerPool(TOKENIZERS, workers=1, seconds=20, cache_bytes=1)
    jobs = [Job(Language("regex", name)) for name in "abc"]
    for job in jobs:
        job.done, job.grammar = True, _Sized(1)  # type: ignore[assignment]
        pool._cache[job.language] = job
    assert pool.submit(jobs[0].language) is jobs[0]
    pool._trim()
    assert list(pool._cache.values()) == [jobs[0]]
    pool.close()


class _Sized:
    """Something with a size."""

    def __init__(self, size: int) -> None:
        self.memory_size_bytes = size
