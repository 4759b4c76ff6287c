"""A step's way over the device: inputs, forward pass, then verification and the next drafts, in the order of launches.

Steps may be launched before the results of the one in flight are known to the host: what their plans leave open is read
from the device's own results. Knows plans, the worker and the verifier; knows nothing about scheduling or about what
tokens mean.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from optimized.engine.sequence import Proposal, Sequence
from optimized.engine.verifier import Drawn, Verified, Verifier, is_greedy
from optimized.ops.verification_lengths import survivals
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.transfer import Download, upload

if TYPE_CHECKING:
    from torch import Tensor

    from optimized._core import StepPlan
    from optimized.model.draft import Choose, Draft

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
        """A step's inputs, as `optimized.worker.input_batch.Prepared`. more_rows: [E] flat rows of a prefill plan whose
        logits are wanted too. limits: what bounds the drafts of a decode plan. previous: results of the step in flight,
        for requests left open."""

    def forward(self, step: Any) -> Tensor:
        """Logits [S, V] float64: of every row of a decode step; of the rows of a prefill step that are sampled, in the
        plan's order, then, [S + E, V], of E more."""

    def propose(self, step: Any, places: Tensor, tokens: Tensor, accepted: Tensor, choose: Choose) -> Draft:
        """Drafts for the requests at `places` [A] of a step's plan, after its forward pass. tokens: [A] the newest of
        each. accepted: [A] how many drafts of its block were kept."""

    def poison(self, used_slots: NDArray[np.int64], used_pages: NDArray[np.int64]) -> None:
        """Makes every other slot and page unfit to be read."""

    def num_pages(self) -> int:
        """Pages of the pool, page 0 included."""

    def time_steps(self, rows: int, repeats: int) -> list[float]:
        """Milliseconds of each of so many decode steps of `rows` rows, drafting included."""

    def fingerprint(self) -> Mapping[str, str]:
        """What the cost of a step depends on besides the options: the model, the device."""


@dataclass(frozen=True)
class Drafting:
    """How drafts are made and judged.

    nextn: most drafts of a block, 0: none. temperatures: of the draft slots' confidences, [2, nextn] float64, those of
    drawn requests and those of greedy ones. num_slots: state slots, whose draft rows are kept for the ratio rule.
    """

    nextn: int
    temperatures: NDArray[np.float64]
    num_slots: int


@dataclass(frozen=True)
class Results:
    """What sampling has left on the device.

    verified: the step's blocks, None if it has none. next: for the step after it. proposed: drafts [A, n] and their
    survival [A, n], on their way to the host.
    """

    verified: Verified | None
    next: BlockResults
    proposed: Download


@dataclass
class LaunchedStep:
    """A step whose forward pass is queued.

    members: the plan's sequences. limits: of a decode plan. lengths: how many drafts of each are verified. blocks: what
    is verified, and drafted: sequences that are given drafts, once `StepPipeline.sample` was called.
    """

    plan: StepPlan
    members: list[Sequence]
    limits: BlockLimits | None
    prompt_rows: PromptRows
    prepared: Future[tuple[Any, Download]]
    logits: Future[Tensor]
    blocks: list[Block] = field(default_factory=list)
    drafted: list[Sequence] = field(default_factory=list)
    results: Future[Results] | None = None

    @property
    def num_rows(self) -> int:
        """Rows, padding not counted."""
        budget = None if self.limits is None else self.limits.budget
        return self.plan.num_rows if budget is None else self.plan.num_requests + budget

    def lengths(self) -> list[int]:
        """Drafts that are verified, by index in the plan; waits for the device where there are any."""
        if self.plan.kind == "prefill" or self.plan.num_rows == self.plan.num_requests:
            return [0] * self.plan.num_requests
        (lengths,) = self.prepared.result()[1].wait()
        return lengths.tolist()

    def collect(self) -> list[tuple[Block, list[Drawn]]]:
        """Waits for the step: what each block has drawn. Prompt logprobs and drafts are handed over on the way."""
        logits = self.logits.result()  # [S + E, V]
        if self.prompt_rows.owners:
            take_prompt_logprobs(self.prompt_rows, logits[-len(self.prompt_rows.owners) :])
        if self.results is None:
            return []
        results = self.results.result()
        if self.drafted:
            drafts, survival = (one.tolist() for one in results.proposed.wait())
            for sequence, tokens, odds in zip(self.drafted, drafts, survival, strict=True):
                sequence.offer(Proposal(tuple(tokens), tuple(odds), self.plan.step_id))
        drawn = [] if results.verified is None else results.verified.collect()
        return list(zip(self.blocks, drawn, strict=True))


class StepPipeline:
    """Queues the forward passes and the sampling of steps."""

    def __init__(
        self,
        worker: Worker,
        verifier: Verifier,
        num_ids: int,
        drafting: Drafting,
        *,
        threaded: bool,
        guarded: bool = False,
    ) -> None:
        """
        Args:
            num_ids: ids that the tokenizer has; none beyond them is ever drawn.
            threaded: the device is a thread, so that the host goes on while it works. guarded: see DeviceQueue.
        """
        self._worker = worker
        self._num_ids = num_ids
        self._verifier = verifier
        self._drafting = drafting
        self._draft_rows: Tensor | None = None
        self._queue = DeviceQueue(threaded=threaded, guarded=guarded)

    def launch(
        self,
        plan: StepPlan,
        members: list[Sequence],
        previous: LaunchedStep | None,
        limits: BlockLimits | None = None,
        used: UsedMemory | None = None,
    ) -> LaunchedStep:
        """Queues a forward pass.

        Args:
            previous: the step in flight, whose sampling is queued.
            limits: what bounds the drafts of a decode plan.
            used: memory that is not to be poisoned before; None: nothing is poisoned.
        """
        wanted = wanted_rows(plan, members)

        def prepare() -> tuple[Any, Download]:
            if used is not None:
                self._worker.poison(*used)
            results = None if previous is None or previous.results is None else previous.results.result().next
            step = self._worker.prepare(plan, wanted.rows if wanted.owners else None, limits, results)
            return step, Download(step.lengths)

        prepared = self._queue.submit(prepare)

        def forward() -> Tensor:
            logits = self._worker.forward(prepared.result()[0])
            if self._num_ids < logits.shape[-1]:
                logits = logits.clone()  # [S + E, V]
                logits[:, self._num_ids :] = -float("inf")
            return logits

        return LaunchedStep(plan, members, limits, wanted, prepared, self._queue.submit(forward))

    def sample(self, step: LaunchedStep, rows: SequenceOf[int], resumed: SequenceOf[int] = ()) -> None:
        """Queues the verification of the blocks of some requests, as their sequences stand now, then drafts for them.

        Args:
            rows: indices of requests of the plan that are sampled, ascending.
            resumed: of those that are not sampled but go on after the last token that they have.
        """
        lengths, slots = step.lengths(), step.plan.slots.tolist()
        step.blocks = [Block(step.members[r], step.members[r].drafts[: lengths[r]], slots[r]) for r in rows]
        places = [*rows, *resumed]
        if self._drafting.nextn:
            step.drafted = [step.members[r] for r in places]
        block_rows = self._verifier.prepare(step.blocks) if step.blocks else None
        wanted = _logit_rows(step.plan, lengths, rows)
        anchors = [step.members[r].token_ids[-1] for r in resumed]

        def draw() -> Results:
            logits = step.logits.result()
            device = logits.device
            verified = None
            newest = upload(anchors, device)  # [A]
            accepted = torch.zeros_like(newest)
            if block_rows is not None:
                chosen = logits.index_select(0, upload(wanted, device))
                verified = self._verifier.launch(chosen, block_rows, self._draft_rows)
                newest, accepted = torch.cat((verified.last, newest)), torch.cat((verified.accepted, accepted))
            where = upload(places, device)
            drafts, survival = self._draft(step, where, newest, accepted)
            newest, accepted, every_draft, every_survival = (
                _spread(values, where, len(step.members)) for values in (newest, accepted, drafts, survival)
            )
            assumed = np.diff(step.plan.query_start).astype(np.int64) - 1
            results = BlockResults(newest, accepted, every_draft, every_survival, assumed)
            return Results(verified, results, Download(drafts, survival))

        step.results = self._queue.submit(draw)

    def _draft(self, step: LaunchedStep, places: Tensor, newest: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor]:
        """Drafts [A, n] for requests of a step, and their survival [A, n] float32.

        Args:
            places: [A] indices in the plan. newest: [A] the newest token of each. accepted: [A] how many of its drafts.
        """
        nextn, prepared = self._drafting.nextn, step.prepared.result()[0]
        if not step.drafted:
            return newest.new_zeros(len(newest), nextn), torch.zeros(len(newest), nextn, device=newest.device)
        choose = self._verifier.chooser(step.drafted, prepared.anchors[places] + accepted + 2)
        draft = self._worker.propose(prepared, places, newest, accepted, choose)
        if choose.rows is not None:
            self._keep_rows(choose.rows, prepared.slots[places])
        greedy = [int(is_greedy(one.request.params)) for one in step.drafted]  # [A]
        temperatures = upload(self._drafting.temperatures[greedy], newest.device, np.float64)  # [A, n]
        return draft.ids[:, :nextn], survivals(draft.confidence[:, :nextn], temperatures)

    def _keep_rows(self, rows: Tensor, slots: Tensor) -> None:
        """What drafts were drawn from, [A, n, V], until their step is verified, by state slot."""
        if self._draft_rows is None:
            self._draft_rows = rows.new_zeros(self._drafting.num_slots, *rows.shape[1:])
        self._draft_rows.index_copy_(0, slots, rows)

    def cancel(self) -> None:
        """Drops everything that has not begun."""
        self._queue.cancel()


def _logit_rows(plan: StepPlan, lengths: list[int], rows: SequenceOf[int]) -> list[int]:
    """Rows of a step's logits that belong to the blocks of some of its requests, in order."""
    sampled = plan.sample_rows.tolist()
    counts = [(1 + length) if row >= 0 else 0 for row, length in zip(sampled, lengths, strict=True)]
    ends = np.cumsum(counts).tolist()
    return [row for r in rows for row in range(ends[r] - counts[r], ends[r])]


def _spread(values: Tensor, places: Tensor, count: int) -> Tensor:
    """[A, ...] values at their places of [count, ...], 0 elsewhere."""
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, places, values)
