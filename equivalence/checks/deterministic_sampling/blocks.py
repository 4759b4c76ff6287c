"""Watches the blocks of an engine: what was drafted for each sequence, and how many drafts each step verified and why.

What is drafted and how many are verified changes no coupled text, so texts alone do not show a fault there. Lengths are
judged here, by the reference's schedule; drafts are kept for the form `reference`. Knows the engine's pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as SequenceOf
from typing import Any
from unittest import mock

import numpy as np

from equivalence.findings import Findings
from optimized.engine.sequence import Proposal, Sequence
from optimized.engine.step_pipeline import LaunchedStep, StepPipeline
from reference.spec import RequestOutput
from reference.speculation import Block
from reference.step_cost import StepCost
from reference.verification_lengths import choose_budget, probabilities, split_budget, survival


class BlockWatch:
    """Judges the lengths of scheduled steps while it is entered, and keeps the proposals of each sample.

    offered: (request id, sample) -> proposals in the order of the blocks that they began.
    """

    def __init__(self, findings: Findings, costs: SequenceOf[tuple[int, float]]) -> None:
        """costs: what the engine was told of (rows, duration) of its steps; empty without drafts."""
        self.offered: dict[tuple[str, int], list[Proposal]] = defaultdict(list)
        self._findings = findings
        self._cost = StepCost(costs, captured=costs[-1][0]) if costs else None

    def __enter__(self) -> BlockWatch:
        sample, offer = StepPipeline.sample, Sequence.offer

        def sampled(pipeline: StepPipeline, step: LaunchedStep, *rows: Any) -> None:
            self._judge(step)
            sample(pipeline, step, *rows)

        def offered(sequence: Sequence, proposal: Proposal) -> None:
            self.offered[sequence.request.request_id, sequence.sample_index].append(proposal)
            offer(sequence, proposal)

        self._patches = (
            mock.patch.object(StepPipeline, "sample", sampled),
            mock.patch.object(Sequence, "offer", offered),
        )
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self._patches:
            patch.stop()

    def _judge(self, step: LaunchedStep) -> None:
        """Budget and lengths of one step, whose sequences stand where its first rows do."""
        budget = None if step.limits is None else step.limits.budget
        if self._cost is None or budget is None or any(one.finish_reason is not None for one in step.members):
            return
        planned = (np.diff(step.plan.query_start) - 1).tolist()
        known = [_survival(one.proposed_before, count) for one, count in zip(step.members, planned, strict=True)]
        fitting = [
            min(count, one.last_length - one.position - 1) for one, count in zip(step.members, planned, strict=True)
        ]
        at_hand = [_survival(one.proposal, count) for one, count in zip(step.members, fitting, strict=True)]
        item = f"step {step.plan.step_id}"
        self._findings.comparisons += 2
        want = choose_budget(known, self._cost)
        if budget != want:
            self._findings.differ(item, "values", f"a budget of {budget} drafts, want {want} by {known}")
        lengths, split = step.lengths(), split_budget(at_hand, budget)
        if lengths != split:
            self._findings.differ(item, "values", f"lengths {lengths}, want {split} of {budget} by {at_hand}")


def _survival(proposal: Proposal | None, count: int) -> list[float]:
    """Of the first `count` drafts; certain where nothing is known."""
    return [1.0] * count if proposal is None else list(proposal.survival[:count])


def compare(findings: Findings, item: str, watch: BlockWatch, output: RequestOutput, blocks: SequenceOf[Block]) -> None:
    """Drafts and survivals of a request's blocks with those of the reference; fixed lengths only."""
    for one in output.outputs:
        mine = watch.offered[output.request_id, one.index]
        theirs = [block for block in blocks if block.index == one.index]
        for number, (proposal, block) in enumerate(zip(mine, theirs, strict=False)):
            findings.comparisons += 1
            place, count = f"{item}, completion {one.index}, block {number}", len(block.drafts)
            if list(proposal.tokens[:count]) != block.drafts:
                findings.differ(place, "values", f"drafts {proposal.tokens[:count]}, want {block.drafts}")
            want = survival(probabilities(block.confidence, [1.0] * len(block.confidence)))[:count]
            if list(proposal.survival[:count]) != want:
                findings.differ(place, "values", f"survival {proposal.survival[:count]}, want {want}")
        if len(mine) < len(theirs):
            findings.differ(item, "values", f"{len(mine)} blocks were drafted, want {len(theirs)}")
