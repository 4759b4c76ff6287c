"""Budgets: which confidences decide, and what calibrates them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optimized.config import EngineConfig
from optimized.engine.door import Request
from optimized.engine.sequence import Proposal, Sequence
from optimized.engine.verification_schedule import VerificationSchedule, temperatures
from reference.spec.errors import ConfigError
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import ConfidenceTable

pytestmark = pytest.mark.ci

COST = np.array([10.0, 10.0, 10.0, 10.0, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5, 13.0, 13.5, 14.0])
#: Survivals of the worked example of the serving specification, §1.8.
EXAMPLE = [(0.9, 0.72, 0.504), (0.6, 0.3, 0.15), (0.95, 0.855, 0.72675)]


def sequence(*proposals: tuple[float, ...]) -> Sequence:
    """One whose drafts were proposed with these survivals, the newest last, at the ends of steps 1, 2, …"""
    made = Sequence(0, 0, Request("0", None, [1], SamplingParams(), seed=1, max_tokens=9), frozenset(), None)
    for step, survival in enumerate(proposals, start=1):
        made.offer(Proposal((7, 8, 9), survival, step))
    return made


def plan(step_id: int, drafts: list[int], in_flight: list[bool]) -> Any:
    starts = np.concatenate(([0], np.cumsum(np.array(drafts) + 1)))
    rows = np.where(in_flight, 0, -1)
    return SimpleNamespace(step_id=step_id, query_start=starts.astype(np.int32), previous_rows=rows.astype(np.int32))


def test_the_block_before_decides_with_and_without_lag() -> None:
    schedule, ones = VerificationSchedule(COST, 3), (1.0, 1.0, 1.0)
    lagging = schedule.choose(plan(3, [3, 3, 3], [True] * 3), [sequence(one) for one in EXAMPLE])
    waiting = schedule.choose(plan(3, [3, 3, 3], [False] * 3), [sequence(one, ones) for one in EXAMPLE])
    assert lagging.budget == waiting.budget == 7
    assert (lagging.lags, waiting.lags) == ([2, 2, 2], [2, 2, 2])
    assert waiting.survival.tolist() == [[1.0] * 3] * 3


def test_a_first_block_counts_as_certain() -> None:
    schedule, first = VerificationSchedule(COST, 3), sequence((0.5, 0.1, 0.1))
    choice = schedule.choose(plan(2, [3, 2], [False, False]), [first, first])
    assert (choice.budget, choice.lags) == (5, [])  # 7 tokens in 11.5 ms beat 6 in 11 and 2 in 10
    first.start()
    assert schedule.choose(plan(9, [0], [False]), [first]).survival.tolist() == [[0.0] * 3]


def config(**options: Any) -> EngineConfig:
    return EngineConfig(nextn=3, verification_lengths="scheduled", **options)


def test_temperatures_of_numbers_and_of_a_table(tmp_path: Path) -> None:
    assert temperatures(config()).tolist() == [[1.0] * 3] * 2
    assert temperatures(config(confidence_table=(2,))).tolist() == [[2.0] * 3] * 2
    assert temperatures(config(confidence_table=[1, 2, 0.5])).tolist() == [[1.0, 2.0, 0.5]] * 2
    path = tmp_path / "table.json"
    ConfidenceTable(rule="coupled", regime="greedy", temperatures=(0.5, 1.5, 2.5)).to_file(path)
    assert temperatures(config(confidence_table=path)).tolist() == [[1.0] * 3, [0.5, 1.5, 2.5]]
    ConfidenceTable(rule="coupled", regime="stochastic", temperatures=(0.5, 1.5, 2.5)).to_file(path)
    assert temperatures(config(confidence_table=str(path))).tolist() == [[0.5, 1.5, 2.5], [1.0] * 3]


def test_a_table_for_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with pytest.raises(ConfigError, match=r"confidence_table: .*table\.json.*No such file"):
        temperatures(config(confidence_table=path))
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"confidence_table: .*table\.json"):
        temperatures(config(confidence_table=path))
    ConfidenceTable(rule="ratio", regime="greedy", temperatures=(1, 1, 1)).to_file(path)
    with pytest.raises(ConfigError, match="rule is 'ratio'; this run needs 'coupled'"):
        temperatures(config(confidence_table=path))
    ConfidenceTable(rule="coupled", regime="greedy", temperatures=(1, 1)).to_file(path)
    with pytest.raises(ConfigError, match="nextn is 2; this run needs 3"):
        temperatures(config(confidence_table=path))
