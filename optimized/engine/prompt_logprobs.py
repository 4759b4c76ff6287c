"""Logprobs of prompt tokens: which rows of a prefill step predict one that is wanted, and what they say.

Knows a step's rows and which sequence they belong to; knows nothing about how logits are made. They are always raw. A
row is read once: what a preempted request computes again changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.engine.logprob_report import report
from optimized.engine.sequence import Sequence

if TYPE_CHECKING:
    from optimized._core import StepPlan


@dataclass(frozen=True)
class PromptRows:
    """Flat rows of a step, [E] int64, and the sequence whose next prompt token each of them predicts."""

    rows: NDArray[np.int64]
    owners: list[Sequence]


def wanted_rows(plan: StepPlan, members: SequenceOf[Sequence]) -> PromptRows:
    """The rows of a step that predict prompt tokens whose logprobs are wanted and not there yet.

    Args:
        members: the plan's sequences, in its order.
    """
    rows: list[int] = []
    owners: list[Sequence] = []
    for r, sequence in enumerate(members):
        if plan.kind != "prefill" or sequence.prompt_logprobs is None:
            continue
        begin, end = int(plan.query_start[r]), int(plan.query_start[r + 1])
        known, last = len(sequence.prompt_logprobs) - 1, len(sequence.request.prompt_token_ids) - 1
        some = [begin + i for i, p in enumerate(plan.positions[begin:end].tolist()) if known <= p < last]
        rows.extend(some)
        owners.extend([sequence] * len(some))
    return PromptRows(np.array(rows, dtype=np.int64), owners)


def take_prompt_logprobs(wanted: PromptRows, logits: torch.Tensor) -> None:
    """Gives the sequences the entries of their prompt tokens.

    Args:
        logits: [E, V] float64, after each of the wanted rows.
    """
    if not wanted.owners:
        return
    places: dict[int, int] = {}
    tokens, counts = [], []
    for sequence in wanted.owners:
        place = places.get(sequence.sequence_id, len(sequence.prompt_logprobs or ()))
        places[sequence.sequence_id] = place + 1
        tokens.append(sequence.request.prompt_token_ids[place])
        counts.append(sequence.request.params.prompt_logprobs or 0)
    broken = torch.isnan(logits).any(dim=1).tolist()
    entries = report(tokens, logits, counts)
    for sequence, token, bad, entry in zip(wanted.owners, tokens, broken, entries, strict=True):
        if bad and sequence.pending_error is None:
            sequence.pending_error = f"the logits that predict prompt token {token} hold NaN"
        if sequence.prompt_logprobs is not None:
            sequence.prompt_logprobs.append(entry)
