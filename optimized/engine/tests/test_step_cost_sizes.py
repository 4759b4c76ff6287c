"""Sizes at which the cost of a step is measured."""

from __future__ import annotations

import pytest

from optimized.engine import step_cost
from optimized.worker.input_batch import bucket_rows

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("most_rows", [1, 3, 14, 16, 42, 70, 200])
def test_no_step_has_more_rows_than_sequences_fill(most_rows: int) -> None:
    asked: list[int] = []

    def time_steps(rows: int, repeats: int) -> list[float]:
        asked.append(rows)
        return [float(rows)] * repeats

    points = step_cost.measure(time_steps, most_rows)
    assert max(asked) == most_rows
    assert points[-1] == (bucket_rows(most_rows), most_rows)
    assert [rows for rows, _ in points] == step_cost.probe_sizes(most_rows)
