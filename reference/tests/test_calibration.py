"""Confidence tables: the fit lowers the error of over-confident rows, and only the right table is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference import calibration
from reference.calibration import Row, calibration_error, fit
from reference.spec.errors import ConfigError, RequestError
from reference.spec.speculation import ConfidenceTable

pytestmark = pytest.mark.ci

SLOTS = 3
TABLE: dict[str, Any] = {"rule": "coupled", "regime": "stochastic", "temperatures": (1.0, 2.0, 0.5)}
WANTED: dict[str, Any] = {"nextn": 3, "rule": "coupled", "regime": "stochastic"}


def overconfident(rng: np.random.Generator, count: int) -> list[Row]:
    """Blocks whose slots are kept with σ(z), reported with logits that are 2.5 times too sharp."""
    z = rng.normal(loc=1.0, size=(count, SLOTS))
    kept = rng.random((count, SLOTS)) < 1 / (1 + np.exp(-z))
    accepted = np.cumprod(kept, axis=1).sum(axis=1)
    return [Row(tuple((2.5 * row).tolist()), SLOTS, int(a)) for row, a in zip(z, accepted, strict=True)]


def test_the_error_is_the_weighted_gap_of_the_bins() -> None:
    predicted, outcome = np.array([0.1, 0.12, 0.95, 1.0]), np.array([False, True, True, False])
    # Bin 1 holds .1 and .12, the last one .95 and 1: gaps |.11 - .5| and |.975 - .5|, half the rows each.
    assert calibration_error(predicted, outcome) == pytest.approx(0.5 * 0.39 + 0.5 * 0.475, abs=1e-7)
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == pytest.approx(0, abs=1e-7)
    assert calibration_error(np.array([]), np.array([])) == 0


def test_the_fit_finds_the_sharpness_and_lowers_the_error(rng: np.random.Generator) -> None:
    table = fit(overconfident(rng, 6000), "ratio", "stochastic")
    assert table.temperatures == pytest.approx([2.5] * SLOTS, rel=0.3)
    assert all(after < 0.4 * before for before, after in zip(table.error_before, table.error_after, strict=True))
    assert (table.rule, table.regime, table.rows) == ("ratio", "stochastic", 6000)


def test_the_first_temperature_of_the_grid_wins_ties() -> None:
    assert fit([Row((0.0,), 1, 1), Row((0.0,), 1, 0)], "coupled", "greedy").temperatures == (pytest.approx(0.1),)
    assert len(calibration.GRID) == 41 and calibration.GRID[20] == 1.0 and calibration.GRID[-1] == pytest.approx(10)


def test_slots_that_were_not_judged_do_not_count(rng: np.random.Generator) -> None:
    rows = overconfident(rng, 500)
    hidden = [Row((*row.logits[:2], 999.0), 2, min(2, row.accepted)) for row in rows]
    assert fit([*rows, *hidden], "coupled", "greedy").temperatures[2] == fit(rows, "coupled", "greedy").temperatures[2]
    with pytest.raises(RequestError, match="no row judges slot 3"):
        fit(hidden, "coupled", "greedy")


@pytest.mark.parametrize("rows", [[], [Row((), 0, 0)], [Row((1.0,), 1, 0), Row((1.0, 1.0), 1, 0)]])
def test_rows_of_no_one_length_are_refused(rows: list[Row]) -> None:
    with pytest.raises(RequestError, match="slots"):
        fit(rows, "coupled", "greedy")


def test_the_command_writes_a_table_that_can_be_read(tmp_path: Path, rng: np.random.Generator) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "table.json"
    lines = [vars(row) for row in overconfident(rng, 200)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = [str(rows), "--rule", "coupled", "--regime", "stochastic", "--output", str(output)]
    assert calibration.main(options) == 0
    table = ConfidenceTable.from_file(output, **WANTED)
    assert table == fit(calibration.read_rows(rows), "coupled", "stochastic")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        '{"logits": 1, "judged": 1, "accepted": 0}',
        '{"logits": [1.0], "judged": 2, "accepted": 0}',
        '{"logits": [1.0], "judged": 1, "accepted": true}',
        '{"logits": [1.0], "judged": 0, "accepted": 1}',
        '{"logits": [NaN], "judged": 1, "accepted": 1}',
        '{"logits": ["1"], "judged": 1, "accepted": 1}',
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_row_is_named(line: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"logits": [1.0], "judged": 1, "accepted": 1}\n' + line + "\n")
    with pytest.raises(RequestError, match="line 2"):
        calibration.read_rows(rows)
    assert calibration.main([str(rows), "--rule", "ratio", "--regime", "greedy", "--output", str(tmp_path / "t")]) == 2
    assert not (tmp_path / "t").exists()


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = ConfidenceTable(**TABLE, rows=7, error_before=(0.1, 0.2, 0.3), error_after=(0.0, 0.0, 0.1))
    table.to_file(tmp_path / "table.json")
    assert ConfidenceTable.from_file(tmp_path / "table.json", **WANTED) == table


@pytest.mark.parametrize(("name", "value"), [("nextn", 2), ("nextn", 4), ("rule", "ratio"), ("regime", "greedy")])
def test_a_table_for_another_run_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    ConfidenceTable(**TABLE).to_file(tmp_path / "table.json")
    with pytest.raises(ConfigError, match=rf"{name} is .*; this run needs {value!r}"):
        ConfidenceTable.from_file(tmp_path / "table.json", **{**WANTED, name: value})


@pytest.mark.parametrize(
    "change",
    [
        {"format": "table 2"},
        {"nextn": 2},
        {"rule": "block"},
        {"regime": None},
        {"temperatures": []},
        {"temperatures": [1, 0, 1]},
        {"temperatures": [1, float("inf"), 1]},
        {"temperatures": [1, 10**400, 1]},
        {"temperatures": [1, "2", 1]},
        {"temperatures": 1.0},
        {"error_after": [0.1]},
        {"rows": -1},
        {"rows": 1.5},
        {"other": 1},
    ],
    ids=str,
)
def test_a_broken_table_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    ConfidenceTable(**TABLE).to_file(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match="confidence table"):
        ConfidenceTable.from_file(path, **WANTED)


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[]", b'{"a": 1, "a": 1}'])
def test_a_file_that_is_no_table_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="confidence table"):
        ConfidenceTable.from_file(path, **WANTED)
