"""A step's way over the device: forward pass, then sampling, in the order in which steps are launched.

Steps may be launched before the tokens of the one in flight are known to the host: rows that its plan leaves open take
them from the device's own results. Knows plans, the worker and the sampler; knows nothing about scheduling or about
what sampled tokens mean.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.engine.block import Block
from optimized.engine.device_queue import DeviceQueue
from optimized.engine.prompt_logprobs import PromptRows, take_prompt_logprobs, wanted_rows
from optimized.engine.sequence import Sequence
from optimized.engine.verifier import Drawn, Verified, Verifier
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.transfer import upload
from reference.spec.sampling import LogprobsMode

if TYPE_CHECKING:
    from torch import Tensor

    from optimized._core import StepPlan

UsedMemory = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(state slots, pages) that live requests hold."""


class Worker(Protocol):
    """What the engine asks of a worker."""

    def prepare(
        self,
        plan: StepPlan,
        more_rows: NDArray[np.int64] | None = None,
        limits: BlockLimits | None = None,
        previous: BlockResults | None = None,
    ) -> Any:
        """A step's inputs. more_rows: [E] flat rows of a prefill plan whose logits are wanted too. limits: what bounds
        the drafts of a decode plan. previous: results of the step in flight, for requests left open."""

    def forward(self, step: Any) -> Tensor:
        """Logits [S, V] float64: of every row of a decode step; of the rows of a prefill step that are sampled, in the
        plan's order, then, [S + E, V], of E more."""

    def poison(self, used_slots: NDArray[np.int64], used_pages: NDArray[np.int64]) -> None:
        """Makes every other slot and page unfit to be read."""

    def num_pages(self) -> int:
        """Pages of the pool, page 0 included."""


@dataclass
class LaunchedStep:
    """A step whose forward pass is queued.

    members: the plan's sequences. sampled: those of them that draw a token, with what they draw and, on the device,
    `tokens` [R] int64 by index in the plan (0 where none was drawn) once `StepPipeline.sample` was called.
    """

    plan: StepPlan
    members: list[Sequence]
    prompt_rows: PromptRows
    logits: Future[Tensor]
    sampled: list[Sequence] = field(default_factory=list)
    results: Future[tuple[Verified, BlockResults]] | None = None

    def collect(self) -> list[tuple[Sequence, Drawn]]:
        """Waits for the step: what each of `sampled` has drawn; prompt logprobs are handed over on the way."""
        logits = self.logits.result()  # [S + E, V]
        if self.prompt_rows.owners:
            take_prompt_logprobs(self.prompt_rows, logits[-len(self.prompt_rows.owners) :])
        drawn = [] if self.results is None else self.results.result()[0].collect()
        return [(sequence, token) for sequence, (token,) in zip(self.sampled, drawn, strict=True)]


class StepPipeline:
    """Queues the forward passes and the sampling of steps."""

    def __init__(
        self, worker: Worker, num_ids: int, logprobs_mode: LogprobsMode, *, threaded: bool, guarded: bool = False
    ) -> None:
        """
        Args:
            num_ids: ids that the tokenizer has; none beyond them is ever drawn.
            threaded: the device is a thread, so that the host goes on while it works. guarded: see DeviceQueue.
        """
        self._worker = worker
        self._num_ids = num_ids
        self._verifier = Verifier(num_ids, logprobs_mode)
        self._queue = DeviceQueue(threaded=threaded, guarded=guarded)

    def launch(
        self, plan: StepPlan, members: list[Sequence], previous: LaunchedStep | None, used: UsedMemory | None = None
    ) -> LaunchedStep:
        """Queues a forward pass.

        Args:
            previous: the step in flight, whose sampling is queued.
            used: memory that is not to be poisoned before; None: nothing is poisoned.
        """
        wanted = wanted_rows(plan, members)

        def forward() -> Tensor:
            if used is not None:
                self._worker.poison(*used)
            results = None if previous is None or previous.results is None else previous.results.result()[1]
            step = self._worker.prepare(plan, wanted.rows if wanted.owners else None, None, results)
            logits = self._worker.forward(step)
            if self._num_ids < logits.shape[-1]:
                logits = logits.clone()  # [S + E, V]
                logits[:, self._num_ids :] = -float("inf")
            return logits

        return LaunchedStep(plan, members, wanted, self._queue.submit(forward))

    def sample(self, step: LaunchedStep, rows: SequenceOf[int]) -> None:
        """Queues the drawing of the next token of some rows, as their sequences stand now.

        Args:
            rows: indices of requests of the plan that are sampled, ascending.
        """
        order = {r: place for place, r in enumerate(np.flatnonzero(step.plan.sample_rows >= 0).tolist())}
        step.sampled = [step.members[r] for r in rows]
        blocks = self._verifier.prepare([Block(sequence) for sequence in step.sampled])

        def draw() -> tuple[Verified, BlockResults]:
            logits = step.logits.result()
            places = upload([order[r] for r in rows], logits.device)  # [B]
            verified = self._verifier.launch(logits.index_select(0, places), blocks)
            tokens = torch.zeros(len(step.members), dtype=torch.int64, device=logits.device)  # [R]
            tokens.index_copy_(0, upload(rows, logits.device), verified.last)
            return verified, _without_drafts(tokens)

        step.results = self._queue.submit(draw)

    def cancel(self) -> None:
        """Drops everything that has not begun."""
        self._queue.cancel()


def _without_drafts(tokens: Tensor) -> BlockResults:
    """Results of a step that drew one token a request [R] int64."""
    zeros, none = torch.zeros_like(tokens), tokens.new_zeros(len(tokens), 0)
    return BlockResults(tokens, zeros, none, none.float(), np.zeros(len(tokens), dtype=np.int64))
