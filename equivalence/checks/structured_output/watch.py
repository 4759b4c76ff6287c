"""Watches an engine between its steps: every matcher against a fresh one, who ended in which step, aborts on time.

Knows the engine's loop and xgrammar's matcher; knows nothing about what a language is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import xgrammar

from equivalence.findings import Findings
from optimized.engine.engine import Engine
from optimized.engine.sequence import Sequence
from optimized.engine.structured.compiler_pool import CompilerPool
from optimized.engine.structured.requests import StructuredRequests
from reference.spec import RequestOutput

_pools: dict[str, CompilerPool] = {}


@contextmanager
def shared_compilers() -> Iterator[None]:
    """Inside, engines of the same tokenizer share their compiler processes and what these have compiled."""
    original = StructuredRequests._new_pool

    def shared(self: Any) -> CompilerPool:
        name = f"{self._vocab_size} {self._eos} {self._tokenizer.to_json()}"
        if name not in _pools:
            _pools[name] = original(self)
        return _pools[name]

    with mock.patch.object(StructuredRequests, "_new_pool", shared):
        yield


@dataclass
class Watch:
    """What a run shows between steps, while it is entered.

    findings: where a matcher that is off is told. aborts: request id -> the step after which it is aborted.
    finished: request id -> the step that completed it, decode and prefill steps counted alike.
    """

    findings: Findings
    aborts: Mapping[str, int] = field(default_factory=dict)
    finished: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Watch:
        step = Engine.step
        self._seen: dict[int, tuple[int, int]] = {}

        def watched(engine: Engine) -> list[RequestOutput]:
            outputs = step(engine)
            steps = engine.statistics.steps
            self.finished |= {output.request_id: steps for output in outputs}
            for request_id, at in self.aborts.items():
                if steps == at:
                    engine.abort(request_id)
            for sequence in engine._sequences.values():
                state = (len(sequence.token_ids), sequence.times_started)
                if sequence.matcher is not None and self._seen.get(sequence.sequence_id) != state:
                    self._seen[sequence.sequence_id] = state
                    self._compare(sequence)
            return outputs

        self._patch = mock.patch.object(Engine, "step", watched)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

    def _compare(self, sequence: Sequence) -> None:
        """A live sequence's mask against that of a matcher that has read its committed ids and nothing else."""
        if sequence.matcher is None:
            return
        self.findings.comparisons += 1
        want = _mask(sequence.matcher._grammar, sequence)
        if not torch.equal(sequence.matcher.words, want):
            item = f"request {sequence.request.request_id}, sample {sequence.sample_index}"
            off = (sequence.matcher.words ^ want).nonzero().flatten().tolist()
            detail = f"mask after {len(sequence.token_ids)} tokens differs from a fresh matcher's in words {off[:4]}"
            self.findings.differ(item, "values", detail)


def _mask(grammar: xgrammar.CompiledGrammar, sequence: Sequence) -> torch.Tensor:
    """[W] int32, what may follow the committed ids; a stop id where the text is complete, and only there."""
    matcher = xgrammar.GrammarMatcher(grammar)
    for token in sequence.token_ids:
        matcher.accept_token(token)
    mask = torch.full_like(sequence.matcher.words, -1)[None] if sequence.matcher is not None else torch.empty(0)
    matcher.fill_next_token_bitmask(mask)
    bits = (mask[0, :, None] >> torch.arange(32)) & 1  # [W, 32]
    flat = bits.flatten()  # [32 W]
    flat[list(matcher.stop_token_ids)] = 0
    flat[list(sequence.stop_ids)] = int(matcher.is_completed())
    signed = flat.view(-1, 32).long() << torch.arange(32)  # [W, 32]
    return signed.sum(dim=1).to(torch.int32)  # [W]
