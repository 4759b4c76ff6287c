"""Draws the tokens of a step: which drafts of each block are kept and which token follows them, with its logprobs.

Knows which numbers of a sequence the sampling operations need, for drafts too, and the order of a block's rows; knows
nothing about how a token is drawn or what happens to it afterwards. A block without drafts is a plain draw. Three
stages: ``Verifier.prepare`` reads sequences and no device, ``Verifier.launch`` queues work on the device and reads
nothing back, ``Verified.collect`` waits for it. Rules: serving specification §1.1, §1.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.engine.adjustments import gather_adjustments, gather_bias
from optimized.engine.block import Block
from optimized.engine.draft_chooser import DraftChooser
from optimized.engine.logprob_report import Findings, find
from optimized.engine.sequence import Sequence
from optimized.engine.structured.requests import masks
from optimized.ops.adjust_logits import Adjustments, adjust_logits, unpack_bits
from optimized.ops.sample import (
    ACCEPT,
    DRAFT,
    GREEDY_TEMPERATURE,
    RESIDUAL,
    TARGET,
    SamplingRows,
    draw,
    greatest,
    philox_words,
    process_logits,
)
from optimized.ops.verify import judge_drafts
from optimized.worker.transfer import Download, moved
from reference.spec.errors import EngineError
from reference.spec.outputs import Logprob
from reference.spec.sampling import LogprobsMode, SamplingParams
from reference.spec.speculation import Verification

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Drawn:
    """A committed token, or why none could be drawn.

    logprob: a float32 value; 0 unless the request asked for logprobs. logprobs: the token's own and the most likely
    ones, by (logit descending, id ascending), each with the rank 1 + number of strictly greater logits.
    """

    token: int
    logprob: float = 0.0
    logprobs: dict[int, Logprob] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class BlockRows:
    """What verification needs to know of B blocks with S rows of logits, in the host's memory.

    sampling: of the rows. drafts: [S] int64, the draft that a row judges, -1 at the last row of a block. grid:
    [B, 1 + nextn] int64, the rows of each block; its last one fills the rest. words: [S, W] int32, what grammars allow.
    judged: [J] int64, rows whose drafts are put to the ratio test. proposals: [J] int64, the rows of ``draft_rows``,
    flattened, that these drafts were drawn from. reported: [N] int64, rows whose logprobs are wanted. most: how many
    most likely tokens any of them reports.
    """

    blocks: SequenceOf[Block]
    sampling: SamplingRows
    drafts: torch.Tensor
    grid: torch.Tensor
    adjustments: Adjustments | None
    words: torch.Tensor | None
    judged: torch.Tensor
    proposals: torch.Tensor
    reported: torch.Tensor
    most: int


@dataclass(frozen=True)
class Verified:
    """What a step's blocks commit, on the device.

    tokens: [B, 1 + nextn] int64, the accepted drafts and the token after them, then 0. accepted: [B] int64, how many
    drafts were kept. last: [B] int64, the token after them, the anchor of the next block; of a block that ends its
    sequence, or has no healthy row, some token of the vocabulary.
    """

    tokens: torch.Tensor
    accepted: torch.Tensor
    last: torch.Tensor
    _blocks: SequenceOf[Block]
    _told: Download  # tokens, accepted, [2, S] `greatest` of the rows before and after adjustment, findings

    def collect(self) -> list[list[Drawn]]:
        """Waits for the device: what each block commits, in order; what is told of a row that failed ends its list.

        A sequence may end with any of its tokens, and does not take those after it.
        """
        all_tokens, accepted, health, *findings = self._told.wait()
        tokens = [some[: 1 + kept] for some, kept in zip(all_tokens.tolist(), accepted.tolist(), strict=True)]
        reports = self._reports(tokens, Findings(*findings)) if findings else {}
        model, adjusted = health.tolist()
        drawn, first = [], 0
        for block, committed in zip(self._blocks, tokens, strict=True):
            drawn.append(_of_block(block, first, committed, (model, adjusted), reports))
            first += len(block)
        return drawn

    def _reports(self, tokens: list[list[int]], findings: Findings) -> dict[int, dict[int, Logprob]]:
        """Logprobs of the rows that were reached and whose requests want them, by row."""
        places, rows, told, counts = list[int](), list[int](), list[int](), list[int]()
        first = place = 0
        for block, committed in zip(self._blocks, tokens, strict=True):
            count = block.sequence.request.params.logprobs
            if count is not None:
                rows += range(first, first + len(committed))
                places += range(place, place + len(committed))
                told += committed
                counts += [count] * len(committed)
                place += len(block)
            first += len(block)
        return dict(zip(rows, findings.of_rows(places).report(told, counts), strict=True))


class Verifier:
    """Verifies the blocks of steps by one rule; a greedy request's drafts are judged by the argmax under either."""

    def __init__(
        self,
        num_ids: int,
        logprobs_mode: LogprobsMode,
        rule: Verification = "coupled",
        alpha: float = 1.0,
        nextn: int = 0,
    ) -> None:
        """
        Args:
            num_ids: ids that the tokenizer has; none beyond them is ever drafted.
            logprobs_mode: whether logprobs are told from the model's logits or from what the token was drawn from.
            alpha: share of q that the residual of the ratio rule takes off.
            nextn: most drafts of a block.
        """
        self._num_ids = num_ids
        self._logprobs_mode = logprobs_mode
        self._rule = rule
        self._alpha = alpha
        self._nextn = nextn

    def prepare(self, blocks: SequenceOf[Block]) -> BlockRows:
        """Reads what verification needs of some blocks, as their sequences stand now.

        A sequence whose grammar fails on the drafts has a ``pending_error`` afterwards.
        """
        lengths = np.array([len(block) for block in blocks], dtype=np.int64)  # [B]
        first = np.cumsum(lengths) - lengths  # [B]
        owner = np.repeat(np.arange(len(blocks)), lengths)  # [S]
        slot = np.arange(len(owner)) - first[owner]  # [S]
        drafts = np.full(len(owner), -1, dtype=np.int64)  # [S]
        drafts[slot < lengths[owner] - 1] = [token for block in blocks for token in block.drafts]
        sequences = [block.sequence for block in blocks]
        judged = self._judged(blocks, drafts, owner)
        sources = np.array([block.source for block in blocks], dtype=np.int64)  # [B]
        role = np.full(len(owner), TARGET, dtype=np.int64)  # [S]
        role[judged] = RESIDUAL
        wanted = [one.request.params.logprobs for one in sequences]
        reported = np.array([count is not None for count in wanted], dtype=np.bool_)[owner]  # [S]
        grid = first[:, None] + np.minimum(np.arange(1 + self._nextn), lengths[:, None] - 1)  # [B, 1 + nextn]
        return BlockRows(
            blocks=blocks,
            sampling=_sampling(sequences, owner, slot, role),
            drafts=torch.from_numpy(drafts),
            grid=torch.from_numpy(grid),
            adjustments=gather_adjustments(blocks, self._num_ids),
            words=masks(blocks),
            judged=torch.from_numpy(judged),
            proposals=torch.from_numpy(sources[owner[judged]] * self._nextn + slot[judged]),
            reported=torch.from_numpy(np.flatnonzero(reported)),
            most=max((count or 0 for count in wanted), default=0),
        )

    def _judged(self, blocks: SequenceOf[Block], drafts: Integers, owner: Integers) -> Integers:
        """[J] rows whose drafts are put to the ratio test."""
        if self._rule == "coupled":
            return np.zeros(0, dtype=np.int64)
        drawn = [not is_greedy(block.sequence.request.params) for block in blocks]
        return np.flatnonzero(np.array(drawn, dtype=np.bool_)[owner] & (drafts >= 0))

    def launch(self, logits: torch.Tensor, rows: BlockRows, draft_rows: torch.Tensor | None = None) -> Verified:
        """Queues the verification of some blocks.

        Args:
            logits: [S, V] float64 of the blocks' rows in order, as the model made them; -inf from num_ids on.
            draft_rows: [R, nextn, V] float64, what drafts were drawn from (``DraftChooser.rows``); the ratio rule alone
                needs it.

        Raises:
            EngineError: drafts of the ratio rule without what they were drawn from.
        """
        if len(rows.judged) and (draft_rows is None or int(rows.proposals.min()) < 0):
            raise EngineError("drafts of the ratio rule came without the rows that they were drawn from")
        rows = moved(rows, logits.device)
        adjusted = self._adjust(logits, rows)  # [S, V]
        health = torch.stack((greatest(logits), greatest(adjusted)))  # [2, S]
        processed = process_logits(adjusted, rows.sampling)  # [S, V]
        told_from = logits if self._logprobs_mode == "raw_logprobs" else processed  # [S, V]
        if draft_rows is None or not len(rows.judged):
            tokens = draw(processed, rows.sampling)  # [S]
            kept = tokens == rows.drafts  # [S]
        else:
            passed, residual = self._judge(processed, rows, draft_rows)
            tokens = draw(processed.index_copy(0, rows.judged, residual), rows.sampling)
            kept = (tokens == rows.drafts).index_copy(0, rows.judged, passed)
        committed = torch.where(kept, rows.drafts, tokens)  # [S]
        accepted = kept[rows.grid].long().cumprod(dim=1).sum(dim=1)  # [B]; the last row of a block keeps nothing
        place = torch.arange(rows.grid.shape[1], device=logits.device)  # [1 + nextn]
        block_tokens = torch.where(place <= accepted[:, None], committed[rows.grid], 0)  # [B, 1 + nextn]
        findings = None
        if len(rows.reported):
            chosen = committed.index_select(0, rows.reported)  # [N]
            findings = find(told_from.index_select(0, rows.reported), chosen, rows.most)
        return Verified(
            tokens=block_tokens,
            accepted=accepted,
            last=block_tokens.gather(1, accepted[:, None])[:, 0],
            _blocks=rows.blocks,
            _told=Download(block_tokens, accepted, health, *(() if findings is None else vars(findings).values())),
        )

    def _adjust(self, logits: torch.Tensor, rows: BlockRows) -> torch.Tensor:
        """[S, V] with bias, penalties and masks."""
        if rows.adjustments is None and rows.words is None:
            return logits
        adjustments = rows.adjustments or Adjustments()
        if rows.words is not None:
            allowed = unpack_bits(rows.words, logits.shape[1])  # [S, V]
            adjustments = replace(adjustments, allowed=allowed)
        return adjust_logits(logits, adjustments)

    def _judge(
        self, processed: torch.Tensor, rows: BlockRows, draft_rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[J] bool, which drafts pass the ratio test; [J, V], what replaces them is drawn from."""
        judged, columns = rows.judged, (rows.sampling.seed, rows.sampling.position, rows.sampling.sample)
        seed, position, sample = (one[judged] for one in columns)  # [J] each
        words = philox_words(seed, position, sample, torch.full_like(seed, ACCEPT), 1)[:, 0]  # [J]
        proposal = draft_rows.flatten(0, 1).index_select(0, rows.proposals)  # [J, V]
        return judge_drafts(processed.index_select(0, judged), proposal, rows.drafts[judged], words, self._alpha)

    def chooser(self, sequences: SequenceOf[Sequence], positions: torch.Tensor) -> DraftChooser:
        """What chooses the drafts of a block of each of A sequences.

        Args:
            positions: [A] int64 on the device, index in prompt + output of each block's first draft.
        """
        count = np.arange(len(sequences))
        role = TARGET if self._rule == "coupled" else DRAFT
        sampling = _sampling(sequences, count, np.zeros_like(count), np.full(len(sequences), role, dtype=np.int64))
        bias = gather_bias(sequences)
        return DraftChooser(
            replace(moved(sampling, positions.device), position=positions),
            None if bias is None else moved(bias, positions.device),
            self._num_ids,
            self._nextn,
            keep_rows=self._rule == "ratio",
        )


def _of_block(
    block: Block,
    first: int,
    tokens: list[int],
    health: tuple[list[float], list[float]],
    reports: dict[int, dict[int, Logprob]],
) -> list[Drawn]:
    """What a block commits, of the tokens of its rows from `first` on that were reached."""
    drawn: list[Drawn] = []
    for row, token in enumerate(tokens, start=first):
        error = _complaint(health[0][row], health[1][row], block.sequence)
        if error is not None:
            return [*drawn, Drawn(token=-1, error=error)]
        entries = reports.get(row)
        drawn.append(Drawn(token) if entries is None else Drawn(token, entries[token].logprob, entries))
    return drawn


def _sampling(sequences: SequenceOf[Sequence], owner: Integers, slot: Integers, role: Integers) -> SamplingRows:
    """The parameters of the sampling operations.

    Args:
        owner: [S], which of the sequences a row belongs to. slot: [S], how many drafts stand before it. role: [S].
    """
    params = [one.request.params for one in sequences]
    drawn = [one for one in params if not is_greedy(one)]

    def numbers(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.float64)[owner])  # [S]

    def integers(values: list[int]) -> torch.Tensor:
        return torch.from_numpy(np.array(values, dtype=np.int64)[owner])  # [S]

    return SamplingRows(
        temperature=numbers([one.temperature for one in params]),
        top_k=integers([one.top_k for one in params]),
        top_p=numbers([one.top_p for one in params]),
        log_min_p=numbers([math.log(one.min_p) if one.min_p > 0 else -math.inf for one in params]),
        seed=integers([_signed(one.request.seed) for one in sequences]),
        position=integers([one.position for one in sequences]) + torch.from_numpy(slot),
        sample=integers([one.sample_index for one in sequences]),
        role=torch.from_numpy(role),
        some_drawn=bool(drawn),
        some_ranked=any(one.top_k > 0 or one.top_p < 1 for one in drawn),
    )


def is_greedy(params: SamplingParams) -> bool:
    """Whether its tokens are those of the argmax."""
    return params.temperature < GREEDY_TEMPERATURE


def _signed(seed: int) -> int:
    """The signed integer with the bits of an unsigned 64-bit one."""
    return seed - 2**64 if seed >= 2**63 else seed


def _complaint(model: float, adjusted: float, sequence: Sequence) -> str | None:
    """Why nothing can be drawn from a row, by the greatest values of what the model made and its request changed."""
    if math.isfinite(model) and math.isfinite(adjusted):
        return None
    for value, what in ((model, "the logits hold"), (adjusted, "with bias and penalties the logits hold")):
        if math.isnan(value) or value == math.inf:
            return f"{what} {'NaN' if math.isnan(value) else '+inf'}"
    if sequence.matcher is not None:
        return "a dead end: its grammar allows no token that the model and min_tokens allow too"
    return "every token is masked: no logit is above -inf"
