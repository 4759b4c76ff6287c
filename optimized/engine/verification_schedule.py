"""How many drafts a decode step verifies over all of its sequences, where lengths are scheduled.

The decision is split so that no token can influence whether it is verified itself: this budget comes from the
confidences of each sequence's block before the one at hand, whatever is known by then; which drafts get it is decided
on the device from those at hand. Knows confidences, their calibration and the cost of steps; knows nothing about tokens
or rules. Source: serving specification §1.6, §1.8-§1.10.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from optimized.engine import step_cost
from optimized.engine.sequence import Sequence
from reference.spec.errors import ConfigError
from reference.spec.speculation import ConfidenceTable, Regime

if TYPE_CHECKING:
    from optimized._core import StepPlan
    from optimized.config import EngineConfig
    from optimized.engine.step_pipeline import Worker

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """budget: drafts over all sequences. survival: [R, n] float32 of the drafts on the host. lags: how many steps old
    the confidences are that decided, of the sequences that had some."""

    budget: int
    survival: NDArray[np.float32]
    lags: list[int]


class VerificationSchedule:
    """Chooses the budget of each decode step."""

    def __init__(self, cost: NDArray[np.float64], nextn: int) -> None:
        """
        Args:
            cost: [rows + 1], duration of a step of 0, 1, … rows, in any unit, above 0.
        """
        self._cost = cost
        self._nextn = nextn

    @classmethod
    def of(cls, config: EngineConfig, worker: Worker) -> VerificationSchedule | None:
        """With costs that were measured now or at an earlier start; None if all drafts are verified."""
        if config.verification_lengths == "fixed":
            return None
        names = ("nextn", "page_size", "max_num_seqs", "max_model_len", "enforce_eager", "device")
        key = {**worker.fingerprint(), **{name: getattr(config, name) for name in names}}
        most_rows = config.max_num_seqs * (config.nextn + 1)
        points = step_cost.kept_points(
            config.step_cost_folder, key, lambda: step_cost.measure(worker.time_steps, most_rows)
        )
        _log.info("cost of a step: %s", ", ".join(f"{rows} rows {time:.2f} ms" for rows, time in points))
        return cls(step_cost.curve(points, most_rows), config.nextn)

    def choose(self, plan: StepPlan, members: SequenceOf[Sequence]) -> Choice:
        """The budget of a decode plan. Confidences that decide are those of the drafts that the sequence's decode step
        before has verified, or is verifying; where there was none, every draft counts as certain."""
        from optimized._core import choose_budget

        in_flight = (plan.previous_rows >= 0).tolist()
        shape = (len(members), self._nextn)
        stale, survival, lags = np.ones(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32), []
        for r, one in enumerate(members):
            decides = one.proposal if in_flight[r] else one.proposed_before
            if decides is not None:
                stale[r] = decides.survival
                lags.append(plan.step_id - decides.step_id)
            if one.proposal is not None:
                survival[r] = one.proposal.survival
        most = np.diff(plan.query_start).astype(np.int32) - 1
        return Choice(choose_budget(stale, most, self._cost), survival, lags)


def temperatures(config: EngineConfig) -> NDArray[np.float64]:
    """[2, nextn], those of the draft slots of drawn requests and of greedy ones.

    Raises:
        ConfigError: confidence_table is a file that is no table for this nextn and rule.
    """
    table, found = config.confidence_table, np.ones((2, config.nextn))
    if table is None:
        return found
    if isinstance(table, tuple | list):
        found[:] = table
        return found
    read = _read_table(config)
    found[0 if read.regime == "stochastic" else 1] = read.temperatures
    return found


def _read_table(config: EngineConfig) -> ConfidenceTable:
    """The table, whichever regime it was fitted under."""
    path: Any = config.confidence_table
    refused: ConfigError | None = None
    for regime in get_args(Regime):
        try:
            return ConfidenceTable.from_file(path, nextn=config.nextn, rule=config.verification, regime=regime)
        except ConfigError as error:
            refused = refused or error
    raise ConfigError(f"confidence_table: {refused}")
