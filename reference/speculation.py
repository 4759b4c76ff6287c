"""Generation of one completion with drafts: propose a block, verify it, commit what it says, again.

Knows a drafter, a rule and how many drafts a block may hold; knows nothing about batches, caches or the cost of a step.
As plain as generation without drafts: full forward passes, nothing kept between blocks but the committed ids.

    generate(model, tokenizer, prompt, params, seed, complete=Speculation(DSpark(model), nextn=5))

A block holds no more drafts than the completion has room for before its last token. A draft's row is processed with
the request's bias, temperature and filters, not with its penalties, grammar and `min_tokens`, which the target's rows
alone obey: those depend on the drafts before, and a device that drafts a block at once does not wait for the host to
count them. Under the coupled rule the text is that of `generate` alone, whatever the drafter and the lengths. Source:
serving specification §1.1, §1.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference import adjustments, calibration, sampler, verification
from reference.completion import Completion
from reference.generate import Call
from reference.model import draft
from reference.model.transformer import ReferenceModel
from reference.spec.errors import RequestError
from reference.spec.outputs import CompletionOutput
from reference.spec.speculation import Verification
from reference.verification import Proposal, Source, Verdict


class Drafter(Protocol):
    """What speculation asks of a draft model."""

    block_size: int

    def propose(self, tokens: Tensor, choose: draft.Choose, replay_start: int) -> draft.Draft:
        """A block for one anchor (A = 1), the last of the token ids [T], T >= 2.

        choose: (logits [1, V] of a slot, slot) -> token ids [1], called slot after slot.
        """


class DSpark:
    """The model's own draft, over the taps of a forward pass over everything before the anchor."""

    def __init__(self, model: ReferenceModel) -> None:
        self.block_size = model.config.dspark_block_size
        self._model = model

    def propose(self, tokens: Tensor, choose: draft.Choose, replay_start: int) -> draft.Draft:
        """See :class:`Drafter`."""
        trace: dict[str, Tensor] = {}
        self._model.forward(tokens[:-1], replay_start, trace)
        last = torch.tensor([len(tokens) - 2])  # [1]
        return draft.propose(self._model, trace["dspark_taps"], tokens[-1:], last, choose, replay_start=replay_start)


@dataclass(frozen=True)
class Block:
    """What became of one block.

    index: of the completion. drafts: those verified. confidence: raw logits of all `nextn` slots. accepted: how many
    drafts were kept. committed: tokens that the completion took, the one after the drafts included.
    stopped: the last draft kept ended the completion, so that none after it was judged.
    """

    index: int
    drafts: list[int]
    confidence: list[float]
    accepted: int
    committed: int
    stopped: bool

    def calibration_row(self) -> calibration.Row:
        """What the block says about its confidences."""
        judged = self.accepted if self.stopped else len(self.drafts)
        return calibration.Row(tuple(self.confidence), judged, self.accepted)


@dataclass(frozen=True)
class Speculation:
    """How completions are made with drafts; `generate` calls it.

    nextn: most drafts of a block, 0..block size. rule, alpha: see `reference.verification`.
    length: most drafts that block number b, from 0, verifies; None: all. record: told of every block.
    source: (seed, sample index) -> where random decisions come from.

    Raises:
        RequestError: nextn is out of range.
    """

    drafter: Drafter
    nextn: int
    rule: Verification = "coupled"
    alpha: float = 1.0
    length: Callable[[int], int] | None = None
    record: Callable[[Block], None] | None = None
    source: Callable[[int, int], Source] = sampler.Noise

    def __post_init__(self) -> None:
        if not 0 <= self.nextn <= self.drafter.block_size:
            raise RequestError(f"nextn = {self.nextn}: must be in 0..{self.drafter.block_size}, the drafter's block")

    def __call__(self, call: Call, index: int) -> CompletionOutput:
        """The completion number `index`: its first token alone, then blocks."""
        completion = call.completion(index)
        noise = self.source(call.seed, index)
        self._commit(call, completion, Proposal([], []), noise)
        number = 0
        while not completion.ended:
            planned = self.nextn if self.length is None else min(self.nextn, self.length(number))
            proposal, confidence = self._propose(call, completion, min(planned, completion.room - 1), noise)
            before = len(completion.output.token_ids)
            verdict = self._commit(call, completion, proposal, noise)
            if self.record is not None:
                committed = len(completion.output.token_ids) - before
                stopped = verdict.accepted == len(verdict.tokens)
                self.record(Block(index, proposal.tokens, confidence, verdict.accepted, committed, stopped))
            number += 1
        return completion.output

    def _propose(self, call: Call, completion: Completion, limit: int, noise: Source) -> tuple[Proposal, list[float]]:
        """Up to `limit` drafts after the newest token, and the raw confidences of all `nextn` slots."""
        if self.nextn == 0:
            return Proposal([], []), []
        context = call.context(completion)
        role = verification.draft_role(self.rule)
        proposal = Proposal([], [])

        def choose(logits: Tensor, slot: int) -> Tensor:
            if slot >= limit:
                return draft.greedy(logits, slot)  # [1]
            known = adjustments.mask_padding(logits[0], call.vocab_size)  # [V]
            row = verification.draft_row(known, call.params)  # [V]
            token = verification.choose(row, call.params, context.position + slot, role, noise)
            proposal.tokens.append(token)
            proposal.rows.append(row)
            return torch.tensor([token])  # [1]

        tokens = torch.tensor([*context.prompt, *context.output])  # [T]
        drafted = self.drafter.propose(tokens, choose, call.replay_start)
        return proposal, drafted.confidence[0, : self.nextn].tolist()

    def _commit(self, call: Call, completion: Completion, proposal: Proposal, noise: Source) -> Verdict:
        """Verify a block, and append what it commits until the completion ends."""
        context = call.context(completion)
        tokens = [*context.prompt, *context.output]
        logits = call.logits([*tokens, *proposal.tokens])[len(tokens) - 1 :]  # [L+1, V]
        verdict = verification.verify(self.rule, logits, proposal, call.params, context, noise, self.alpha)
        for k, token in enumerate(verdict.tokens):
            if not completion.ended:
                completion.append(token, call.reported(logits[k], verdict.rows[k]))
        return verdict
