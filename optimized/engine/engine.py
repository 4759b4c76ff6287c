"""The step loop: schedule, launch, take the results of the step before and look at their text, commit, then sample.

Knows the scheduler and the worker, and is the only one that knows both; knows nothing about tensors' contents, prompts'
text or files.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from optimized.engine.acceptance import Acceptance
from optimized.engine.block import Block
from optimized.engine.door import Limits, Refusal, Request
from optimized.engine.output_processor import OutputProcessor
from optimized.engine.sequence import Sequence
from optimized.engine.statistics import Statistics
from optimized.engine.step_pipeline import Drafting, LaunchedStep, StepPipeline, UsedMemory, Worker
from optimized.engine.structured.requests import StructuredRequests
from optimized.engine.verification_schedule import VerificationSchedule, temperatures
from optimized.engine.verifier import Drawn, Verifier
from optimized.worker.decode_rows import BlockLimits
from reference.spec.errors import EngineError
from reference.spec.outputs import RequestOutput

if TYPE_CHECKING:
    from optimized._core import Scheduler, StepPlan
    from optimized.config import EngineConfig
    from optimized.tokenizer import Tokenizer
    from reference.spec.config import ModelConfig

#: How long a turn waits for a grammar where nothing else is to be done; calls of `abort` wait as long.
GRAMMAR_POLL_SECONDS = 0.05

#: DeepInfer's share of q that its residual takes off.
PENALISED = math.exp(-5e-5)

_log = logging.getLogger(__name__)


class Engine:
    """Requests in, step by step, outputs out.

    Whatever ends a call early (a failing step, KeyboardInterrupt), `abort_all` leaves the engine as new.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, worker: Worker, tokenizer: Tokenizer | None) -> None:
        """
        Args:
            model: vocabulary and EOS id are read from it.
            config: resolved, so that every length is a number.
        """
        self.statistics = Statistics(acceptance=Acceptance(config.nextn))
        # An Engram layer can only hash ids that its tokenizer has; rows of the vocabulary beyond them are padding.
        known = tokenizer.vocab_size if tokenizer is not None and model.engram_layer_ids else model.vocab_size
        self._num_ids = min(known, model.vocab_size)
        self._config = config
        self._worker = worker
        self._processor = OutputProcessor(tokenizer, model.eos_token_id)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._abort_calls: deque[str] = deque()
        self._to_abort: set[str] = set()
        self._in_flight: LaunchedStep | None = None
        accelerated = config.device.startswith("cuda")
        alpha = PENALISED if config.penalised_residual else 1.0
        verifier = Verifier(self._num_ids, config.logprobs_mode, config.verification, alpha, config.nextn)
        self._pipeline = StepPipeline(
            worker,
            verifier,
            self._num_ids,
            Drafting(config.nextn, temperatures(config), config.max_num_seqs + 1),
            threaded=config.async_scheduling and not accelerated,
            guarded=config.sync_guard and accelerated,
        )
        self._lengths = VerificationSchedule.of(config, worker)
        self._scheduler = self._new_scheduler()
        self._structured = StructuredRequests(model, config, tokenizer)

    def _new_scheduler(self) -> Scheduler:
        from optimized._core import Scheduler

        config = self._config
        if config.max_model_len is None or config.max_num_batched_tokens is None:
            raise EngineError("the engine was given a configuration that is not resolved for a model")
        return Scheduler(
            num_pages=self._worker.num_pages(),
            page_size=config.page_size,
            num_slots=config.max_num_seqs + 1,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            nextn=config.nextn,
            max_in_flight=2 if config.async_scheduling else 1,
        )

    @property
    def limits(self) -> Limits:
        """What a request must fit into."""
        return Limits(self._num_ids, self._config.max_model_len or 0, self._scheduler.explain_never)

    @property
    def num_live(self) -> int:
        """Sequences that have not ended."""
        return len(self._sequences)

    @property
    def num_scheduled(self) -> int:
        """Those of them that do not wait for a grammar."""
        return len(self._sequences) - self._structured.num_waiting

    def add(self, request: Request) -> None:
        """Queues every sample of a request.

        Raises:
            EngineError: it can never run; the door should have refused it.
        """
        sequences = self._processor.open(request, self._next_id)
        self._next_id += len(sequences)
        self._sequences.update((sequence.sequence_id, sequence) for sequence in sequences)
        if request.language is None:
            self._schedule(request, sequences)
        else:
            self._structured.submit(request, sequences)

    def _schedule(self, request: Request, sequences: list[Sequence]) -> None:
        """Hands a request's sequences to the scheduler."""
        from optimized._core import Admission

        prompt = np.array(request.prompt_token_ids, dtype=np.int64)
        replay_start = self._config.replay_start(len(prompt)) if request.params.prompt_logprobs is None else 0
        for sequence in sequences:
            verdict = self._scheduler.add(sequence.sequence_id, prompt, request.max_tokens, replay_start)
            if verdict is not Admission.OK:
                raise EngineError(
                    f"request {request.request_id} was admitted, but the scheduler says that it never fits"
                )

    def _schedule_compiled(self) -> list[RequestOutput]:
        """Hands over the requests whose grammars are compiled; the outputs of those whose grammars failed."""
        outputs = []
        for one in self._structured.ready():
            if one.job.grammar is not None and all(sequence.error is None for sequence in one.sequences):
                self._schedule(one.request, one.sequences)
            else:
                outputs += self._complete(one.sequences)
        return outputs

    def step(self) -> list[RequestOutput]:
        """One turn: launches a step, then takes the results of the one in flight, with asynchronous scheduling; else
        both of the same step. The outputs of the requests that were completed.

        The order of a turn is: schedule a step, launch its forward pass, take the tokens of the step before, queue the
        sampling. A prefill step is waited for at once, and so is one whose requests have all ended.

        Raises:
            EngineError: sequences are live, but no step can be made.
        """
        outputs = self._apply_aborts() + self._schedule_compiled()
        previous = self._in_flight
        plan = self._scheduler.schedule()
        if plan is None and previous is None and self._sequences:
            if not self._structured.num_waiting:
                raise EngineError(f"no step can be made:\n{self._scheduler.dump()}")
            self._structured.wait(GRAMMAR_POLL_SECONDS)
        launched = None if plan is None else self._launch(plan, previous)
        if previous is not None:
            outputs += self._settle(previous)
        if launched is not None:
            self._pipeline.sample(launched, self._rows_to_sample(launched), self._resumed_rows(launched))
            if not self._config.async_scheduling or launched.plan.kind == "prefill" or not self._sequences:
                outputs += self._settle(launched)
                launched = None
        self._in_flight = launched
        return outputs

    def _launch(self, plan: StepPlan, previous: LaunchedStep | None) -> LaunchedStep:
        """Queues a step's forward pass."""
        members = [self._sequences[sequence_id] for sequence_id in plan.request_ids.tolist()]
        for sequence, fresh in zip(members, plan.fresh.tolist(), strict=True):
            if fresh:
                sequence.start()
        limits = None if plan.kind == "prefill" else self._limits(plan, members)
        used = self._used() if self._config.poison_unused else None
        return self._pipeline.launch(plan, members, previous, limits, used)

    def _limits(self, plan: StepPlan, members: list[Sequence]) -> BlockLimits:
        """What bounds the drafts of a decode step."""
        longest = np.array([one.last_length for one in members], dtype=np.int64)
        if self._lengths is None:
            return BlockLimits(longest)
        choice = self._lengths.choose(plan, members)
        self.statistics.acceptance.lags.update(choice.lags)
        return BlockLimits(longest, choice.budget, choice.survival)

    def _used(self) -> UsedMemory:
        """What live requests hold."""
        scheduler = self._scheduler
        ids = scheduler.request_ids().tolist()
        slots = np.array([scheduler.slot(one) for one in ids], dtype=np.int64)
        pages = [page for one in ids for page in scheduler.pages(one).tolist()]
        return slots[slots > 0], np.array(pages, dtype=np.int64)

    def _rows_to_sample(self, step: LaunchedStep) -> list[int]:
        """Sampled rows whose sequences still run in the slot that the plan gave them."""
        return [r for r, row in enumerate(step.plan.sample_rows.tolist()) if row >= 0 and self._is_live(step, r)]

    def _is_live(self, step: LaunchedStep, r: int) -> bool:
        """Whether a step's row counts: its sequence has not ended, nor was it preempted, since the step was planned."""
        sequence_id = step.members[r].sequence_id
        return sequence_id in self._sequences and self._scheduler.slot(sequence_id) == int(step.plan.slots[r])

    def _resumed_rows(self, step: LaunchedStep) -> list[int]:
        """Requests that were computed anew up to their last token, by index in the plan: they only need drafts."""
        ends = step.plan.kv_lens.tolist()
        return [
            r
            for r, one in enumerate(step.members)
            if step.plan.kind == "prefill" and one.token_ids and ends[r] == one.position - 1 and self._is_live(step, r)
        ]

    def _settle(self, step: LaunchedStep) -> list[RequestOutput]:
        """Waits for a step, and takes its tokens; blocks that do not count any more are dropped."""
        drawn = {block.sequence.sequence_id: (block, tokens) for block, tokens in step.collect()}
        taken: dict[int, int] = {}
        for r, member in enumerate(step.members):
            if member.sequence_id in drawn and self._is_live(step, r):
                taken[member.sequence_id] = self._take(*drawn[member.sequence_id])
        self._commit(step, taken)
        return self._complete([one for one in step.members if one.sequence_id in taken])

    def abort(self, request_id: str) -> None:
        """Ends a request, running, waiting or not added yet, at the start of a step; from any thread.

        Its output has what was generated until then and finish_reason "abort". A request that has ended is left alone.
        """
        self._abort_calls.append(request_id)

    def forget_aborts(self) -> None:
        """Drops the calls of `abort` that found no request."""
        self._abort_calls.clear()
        self._to_abort.clear()

    def _apply_aborts(self) -> list[RequestOutput]:
        """The outputs of the requests that `abort` named."""
        outputs = []
        while self._abort_calls:
            self._to_abort.add(self._abort_calls.popleft())
        for request_id in sorted(self._to_abort):
            self._structured.drop(request_id)
            for sequence in self._processor.unfinished(request_id):
                self._to_abort.discard(request_id)
                self._scheduler.abort(sequence.sequence_id)
                sequence.finish("abort")
                del self._sequences[sequence.sequence_id]
                output = self._processor.close(sequence)
                if output is not None:
                    self.statistics.count_output(output)
                    outputs.append(output)
        return outputs

    def _take(self, block: Block, drawn: list[Drawn]) -> int:
        """Gives a sequence the tokens of its block until it ends; how many it took. The last of them may be the reason
        why it cannot go on."""
        sequence, before = block.sequence, len(block.sequence.token_ids)
        for one in drawn:
            if sequence.finish_reason is not None:
                break
            error = one.error or sequence.pending_error
            if error is not None:
                sequence.fail(error)
                break
            sequence.logprobs.append(one.logprobs)
            sequence.cumulative_logprob += one.logprob
            sequence.append(one.token)
            self._processor.take(sequence)
        taken = len(sequence.token_ids) - before
        if self._config.nextn and before:
            self._count_block(block, drawn, taken)
        return taken

    def _count_block(self, block: Block, drawn: list[Drawn], taken: int) -> None:
        """Puts a block down in the statistics."""
        kept = [one.token for one in drawn[:-1]]
        accepted, sequence = len(kept), block.sequence
        stop = next((place for place, token in enumerate(kept) if token in sequence.stop_ids), None)
        if stop is not None:
            accepted = stop + 1
        sequence.verified_drafts += len(block.drafts)
        sequence.accepted_drafts += accepted
        judged = accepted if stop is not None else len(block.drafts)
        survival = sequence.proposed_before.survival if sequence.proposed_before is not None else ()
        self.statistics.acceptance.count(len(block.drafts), judged, accepted, taken, survival)

    def _commit(self, step: LaunchedStep, taken: dict[int, int]) -> None:
        """Tells the scheduler the new tokens, which sequences their tokens end, and what was drafted.

        Args:
            taken: how many tokens each sequence took, by its id.
        """
        plan, members = step.plan, step.members
        counts = [taken.get(one.sequence_id, 0) for one in members]
        tokens = [one.token_ids[len(one.token_ids) - count :] for one, count in zip(members, counts, strict=True)]
        drafted = {one.sequence_id for one in step.drafted}
        drafts = [
            one.drafts if one.sequence_id in drafted and one.finish_reason is None and self._is_live(step, r) else ()
            for r, one in enumerate(members)
        ]
        self._scheduler.commit(
            plan.step_id,
            plan.request_ids,
            np.array([token for some in tokens for token in some], dtype=np.int64),
            np.array(counts, dtype=np.int32),
            np.array([one.finish_reason is not None for one in members], dtype=np.bool_),
            np.array([token for some in drafts for token in some], dtype=np.int64),
            np.array([len(some) for some in drafts], dtype=np.int32),
        )
        self.statistics.count_step(plan.kind, step.num_rows, sum(counts))
        interval = self._config.log_stats_interval
        if interval and self.statistics.steps % interval == 0:
            scheduler = self._scheduler
            self.statistics.log(
                scheduler.num_running, scheduler.num_waiting, scheduler.num_free_pages, scheduler.num_usable_pages
            )

    def _complete(self, sequences: list[Sequence]) -> list[RequestOutput]:
        """Lets ended sequences go, and gathers the outputs that are complete."""
        outputs = []
        for sequence in sequences:
            if sequence.finish_reason is None:
                continue
            del self._sequences[sequence.sequence_id]
            output = self._processor.close(sequence)
            if output is not None:
                self.statistics.count_output(output)
                outputs.append(output)
        return outputs

    def refuse(self, refusal: Refusal) -> RequestOutput:
        """The output of a request that was refused at the door."""
        _log.info("%s", refusal.error)
        output = refusal.output()
        self.statistics.count_output(output)
        return output

    def abort_all(self) -> None:
        """Drops every request and everything they held: a new scheduler owns all pages and slots again, which is right
        even if the last step stopped half-way, or has not stopped yet: the steps to come are queued behind it."""
        self._pipeline.cancel()
        self._in_flight = None
        self._sequences.clear()
        self._structured.drop_all()
        self.forget_aborts()
        self._processor.drop_all()
        self._scheduler = self._new_scheduler()

    def check_idle(self) -> None:
        """All pages and slots are free and nothing is queued.

        Raises:
            EngineError: something leaked; both sides of the equation are named.
        """
        scheduler = self._scheduler
        scheduler.check_integrity()
        pages = (scheduler.num_free_pages, scheduler.num_usable_pages)
        slots = (scheduler.num_free_slots, scheduler.num_usable_slots)
        if pages[0] != pages[1] or slots[0] != slots[1] or scheduler.has_work() or self._sequences:
            raise EngineError(
                f"not idle: pages free {pages[0]} of {pages[1]}, slots free {slots[0]} of {slots[1]}, "
                f"live sequences {len(self._sequences)}"
            )
