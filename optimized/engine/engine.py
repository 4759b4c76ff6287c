"""The step loop: schedule, launch, take the results of the step before, sample, commit, then look at the text.

Knows the scheduler and the worker, and is the only one that knows both; knows nothing about tensors' contents, prompts'
text or files.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from optimized.engine.door import Limits, Refusal, Request
from optimized.engine.output_processor import OutputProcessor
from optimized.engine.sequence import Sequence
from optimized.engine.statistics import Statistics
from optimized.engine.step_pipeline import LaunchedStep, StepPipeline, UsedMemory, Worker
from optimized.engine.structured.requests import StructuredRequests
from optimized.engine.verifier import Drawn
from reference.spec.errors import EngineError
from reference.spec.outputs import RequestOutput

if TYPE_CHECKING:
    from optimized._core import Scheduler, StepPlan
    from optimized.config import EngineConfig
    from optimized.tokenizer import Tokenizer
    from reference.spec.config import ModelConfig

#: How long a turn waits for a grammar where nothing else is to be done; calls of `abort` wait as long.
GRAMMAR_POLL_SECONDS = 0.05

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
        self.statistics = Statistics()
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
        self._pipeline = StepPipeline(
            worker,
            self._num_ids,
            config.logprobs_mode,
            threaded=config.async_scheduling and not accelerated,
            guarded=config.sync_guard and accelerated,
        )
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
            self._pipeline.sample(launched, self._rows_to_sample(launched))
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
        return self._pipeline.launch(plan, members, previous, self._used() if self._config.poison_unused else None)

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

    def _settle(self, step: LaunchedStep) -> list[RequestOutput]:
        """Waits for a step, and takes its tokens; rows that do not count any more are dropped."""
        drawn = {one.sequence_id: (one, token) for one, token in step.collect()}
        sampled = []
        for r, member in enumerate(step.members):
            if member.sequence_id in drawn and self._is_live(step, r):
                self._take(*drawn[member.sequence_id])
                sampled.append(member)
        self._commit(step.plan, step.members, sampled)
        return self._complete(sampled)

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

    def _take(self, sequence: Sequence, drawn: Drawn) -> None:
        """Gives a sequence its next token, or the reason why it cannot go on."""
        error = drawn.error or sequence.pending_error
        if error is not None:
            sequence.fail(error)
            return
        sequence.logprobs.append(drawn.logprobs)
        sequence.cumulative_logprob += drawn.logprob
        sequence.append(drawn.token)

    def _commit(self, plan: StepPlan, members: list[Sequence], sampled: list[Sequence]) -> None:
        """Tells the scheduler the new tokens and which sequences their ids or lengths end."""
        with_token = {one.sequence_id for one in sampled if one.finish_reason != "error"}
        counts = [int(one.sequence_id in with_token) for one in members]
        tokens = [one.token_ids[-1] for one in members if one.sequence_id in with_token]
        self._scheduler.commit(
            plan.step_id,
            plan.request_ids,
            np.array(tokens, dtype=np.int64),
            np.array(counts, dtype=np.int32),
            np.array([one.finish_reason is not None for one in members], dtype=np.bool_),
        )
        self.statistics.count_step(plan.kind, plan.num_rows, len(tokens))
        interval = self._config.log_stats_interval
        if interval and self.statistics.steps % interval == 0:
            scheduler = self._scheduler
            self.statistics.log(
                scheduler.num_running, scheduler.num_waiting, scheduler.num_free_pages, scheduler.num_usable_pages
            )

    def _complete(self, sampled: list[Sequence]) -> list[RequestOutput]:
        """Applies stop strings, lets ended sequences go, and gathers the outputs that are complete."""
        outputs = []
        for sequence in sampled:
            ended_before = sequence.finish_reason is not None
            self._processor.take(sequence)
            if sequence.finish_reason is None:
                continue
            if not ended_before:
                self._scheduler.abort(sequence.sequence_id)
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
