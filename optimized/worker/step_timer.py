"""Decode steps of given sizes, timed: verification of all rows, then a draft for each request.

Their requests are made up: they are in slot 0 and page 0, where nothing is read, at a position that stands for an
ordinary context. Knows the layout of a plan; knows nothing about scheduling or about what is done with the times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.worker.model_runner import ModelRunner

#: Position of the first row of a made-up request, where the model's length allows it.
CONTEXT = 1024


@dataclass(frozen=True)
class MadeUpPlan:
    """A decode plan of requests that do not exist; the fields are those of `optimized._core.StepPlan`."""

    slots: NDArray[np.int32]
    query_start: NDArray[np.int32]
    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    page_table: NDArray[np.int32]
    kind: Literal["decode"] = "decode"
    step_id: int = 0

    @classmethod
    def of(cls, rows: int, nextn: int, context: int, pages: int) -> MadeUpPlan:
        """`rows` rows of as few requests as may have them, each with up to `nextn` drafts."""
        counts = np.diff(np.append(np.arange(0, rows, nextn + 1), rows))
        starts = np.concatenate(([0], np.cumsum(counts)))
        offsets = np.arange(rows) - np.repeat(starts[:-1], counts)
        return cls(
            np.zeros(len(counts), dtype=np.int32),
            starts.astype(np.int32),
            context + offsets,
            np.zeros(rows, dtype=np.int64),
            np.zeros((len(counts), pages), dtype=np.int32),
        )

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.slots)

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.tokens)

    @property
    def fresh(self) -> NDArray[np.bool_]:
        """[R] none is."""
        return np.zeros(self.num_requests, dtype=np.bool_)

    @property
    def replay_starts(self) -> NDArray[np.int32]:
        """[R] 0."""
        return np.zeros(self.num_requests, dtype=np.int32)

    @property
    def previous_rows(self) -> NDArray[np.int32]:
        """[R] none is in flight."""
        return np.full(self.num_requests, -1, dtype=np.int32)


def time_steps(
    runner: ModelRunner, rows: int, repeats: int, nextn: int, max_model_len: int, page_size: int
) -> list[float]:
    """Milliseconds of each of `repeats` steps, after one that is not counted."""
    context = max(0, min(CONTEXT, max_model_len - nextn - 1))
    plan = MadeUpPlan.of(rows, nextn, context, -(-(context + nextn + 1) // page_size))
    return [_one(runner, plan) for _ in range(1 + repeats)][1:]


def _one(runner: ModelRunner, plan: MadeUpPlan) -> float:
    began = time.perf_counter()
    step = runner.prepare(plan)  # type: ignore[arg-type]
    logits = runner.forward(step)
    places = torch.arange(plan.num_requests, device=logits.device)
    draft = runner.propose(step, places, places * 0, places * 0, lambda row, _: torch.argmax(row, dim=1))
    draft.confidence.cpu()
    return 1e3 * (time.perf_counter() - began)
