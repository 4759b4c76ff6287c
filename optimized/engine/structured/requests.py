"""Requests whose texts must be in a language: their grammars are compiled while others run, then they go on.

Knows requests, sequences, the pool of compilers and matchers; knows nothing about the scheduler or logits.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from optimized.engine.block import Block
from optimized.engine.door import Request
from optimized.engine.sequence import Sequence
from optimized.engine.structured.compiler_pool import CompilerPool, Job
from optimized.engine.structured.language import Kind, Language
from optimized.engine.structured.matcher import GrammarError, Matcher
from optimized.engine.structured.vocabulary import token_bytes, without_control_characters
from reference.spec.errors import EngineError, UnsupportedError

if TYPE_CHECKING:
    import xgrammar

    from optimized.config import EngineConfig
    from optimized.tokenizer import Tokenizer
    from reference.spec.config import ModelConfig


@dataclass(frozen=True)
class Waiting:
    """A request that waits for its grammar."""

    request: Request
    sequences: list[Sequence]
    job: Job


class StructuredRequests:
    """The requests that wait, in their order, and the masks of those that run."""

    def __init__(self, model: ModelConfig, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        self._vocab_size = model.vocab_size
        self._eos = model.eos_token_id
        self._config = config
        self._tokenizer = tokenizer
        self._pool: CompilerPool | None = None
        self._waiting: list[Waiting] = []

    @property
    def num_waiting(self) -> int:
        """Sequences whose grammar is being compiled."""
        return sum(len(one.sequences) for one in self._waiting)

    def submit(self, request: Request, sequences: list[Sequence]) -> None:
        """Begins to compile a request's grammar."""
        if request.language is None:
            raise EngineError(f"request {request.request_id} has no language to compile")
        self._waiting.append(Waiting(request, sequences, self._job(request.language)))

    def _job(self, language: Language) -> Job:
        if self._pool is None:
            try:
                self._pool = self._new_pool()
            except UnsupportedError as error:
                return Job.failed(language, str(error))
        return self._pool.submit(language)

    def _new_pool(self) -> CompilerPool:
        if self._tokenizer is None:
            raise EngineError("structured output needs a tokenizer; the door should have refused the request")
        vocabulary = token_bytes(self._tokenizer.to_json())[: self._vocab_size]
        other = self._tokenizer_info(vocabulary)
        infos: dict[Kind, xgrammar.TokenizerInfo] = {
            "json": self._tokenizer_info(without_control_characters(vocabulary)),
            "regex": other,
            "ebnf": other,
        }
        config = self._config
        return CompilerPool(infos, config.grammar_workers, config.grammar_timeout, config.grammar_cache_bytes)

    def _tokenizer_info(self, vocabulary: list[bytes]) -> xgrammar.TokenizerInfo:
        import xgrammar

        return xgrammar.TokenizerInfo(vocabulary, vocab_size=self._vocab_size, stop_token_ids=[self._eos])

    def ready(self) -> list[Waiting]:
        """Takes out the requests that wait no longer. Their sequences have matchers, or have ended with an error."""
        done = [one for one in self._waiting if one.job.done]
        self._waiting = [one for one in self._waiting if not one.job.done]
        for one in done:
            for sequence in one.sequences:
                self._give_matcher(sequence, one.job)
        return done

    def _give_matcher(self, sequence: Sequence, job: Job) -> None:
        if job.grammar is None:
            sequence.fail(f"so_args: {job.error}")
            return
        try:
            sequence.matcher = Matcher(job.grammar, sequence.stop_ids, self._vocab_size)
        except GrammarError as error:
            sequence.fail(f"so_args: {error}")

    def wait(self, seconds: float) -> None:
        """Sleeps until a grammar is compiled, but not longer than this."""
        if self._pool is not None:
            self._pool.wait(seconds)

    def drop(self, request_id: str) -> bool:
        """Forgets a request that waits; whether there was one."""
        before = len(self._waiting)
        self._waiting = [one for one in self._waiting if one.request.request_id != request_id]
        return len(self._waiting) < before

    def drop_all(self) -> None:
        """Forgets every request that waits."""
        self._waiting.clear()


def masks(blocks: SequenceOf[Block]) -> torch.Tensor | None:
    """[S, W] int32, what each row of some blocks may draw, as bits; None if none of them is in a language.

    A sequence that cannot go on is told so when its next token is drawn; its rows are free.
    """
    some = next((one.sequence.matcher for one in blocks if one.sequence.matcher is not None), None)
    if some is None:
        return None
    return torch.cat([_mask(one, some.words) for one in blocks])


def _mask(block: Block, like: torch.Tensor) -> torch.Tensor:
    """[1 + L, W] of one block."""
    sequence = block.sequence
    if sequence.matcher is not None:
        try:
            return sequence.matcher.words_through(block.drafts)
        except GrammarError as error:
            sequence.pending_error = sequence.pending_error or str(error)
    return torch.full_like(like, -1).expand(len(block), -1)
