"""What a step costs: which sizes are measured, and what a folder keeps of it. The curve: equivalence/tests."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from optimized.engine.step_cost import FORMAT, Points, curve, kept_points, measure, probe_sizes

pytestmark = pytest.mark.ci

KEY = {"model": "m", "device": "d", "nextn": 3}
POINTS: Points = [(1, 2.0), (8, 3.5)]
#: Numbers that JSON can write and no step has.
BEYOND = [[10**400, 1.0], [2**40, 1.0], [1, 10**400], [1, 1e300]]


class Measured:
    """Measures POINTS, and how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Points:
        self.calls += 1
        return POINTS


def kept(folder: Path | None, key: dict[str, Any] = KEY) -> tuple[Points, int]:
    measured = Measured()
    return kept_points(folder, key, measured), measured.calls


def test_small_buckets_are_all_measured_and_large_ones_sparsely() -> None:
    assert probe_sizes(1) == [1]
    assert probe_sizes(6) == [1, 2, 4, 8]
    assert probe_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert probe_sizes(1536) == [1, 2, 4, *range(8, 65, 8), 96, 192, 384, 768, 1536]
    assert probe_sizes(100)[-2:] == [96, 104]


def test_a_size_costs_its_median() -> None:
    def time_steps(rows: int, repeats: int) -> list[float]:
        assert repeats >= 5
        return [rows * 1.0, 1000.0, rows * 1.0, 0.001, rows * 1.0]

    assert measure(time_steps, 3) == [(1, 1.0), (2, 2.0), (4, 3.0)]  # of three rows and padding


def test_steps_that_take_long_end_the_measurement() -> None:
    points = measure(lambda rows, repeats: [4.0 * rows] * repeats, 1536)
    assert points[-3:] == [(64, 256.0), (96, 384.0), (192, 768.0)]
    assert curve(points, 1536)[[192, 384, 1536]].tolist() == [768.0, 1536.0, 6144.0]


def test_a_folder_keeps_points_by_what_they_depend_on(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "costs"
    assert kept(folder) == (POINTS, 1)
    assert kept(folder) == (POINTS, 0)
    assert kept(folder, {**KEY, "nextn": 4}) == (POINTS, 1)
    assert len(list(folder.iterdir())) == 2
    assert kept(None) == kept(None) == (POINTS, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": "counterpoint step cost 1"}',
        json.dumps({"format": "counterpoint step cost 1", "key": KEY, "points": []}),
        json.dumps({"format": "counterpoint step cost 1", "key": KEY, "points": [[1, -2.0]]}),
        json.dumps({"format": "counterpoint step cost 1", "key": KEY, "points": [[1, float("inf")]]}),
        json.dumps({"format": "counterpoint step cost 1", "key": KEY, "points": [[8, 1.0], [4, 1.0]]}),
        json.dumps({"format": "counterpoint step cost 1", "key": KEY, "points": [[True, 1.0]]}),
        json.dumps({"format": "counterpoint step cost 1", "key": {}, "points": [[1, 1.0]]}),
        json.dumps({"format": "something else", "key": KEY, "points": [[1, 1.0]]}),
        '{"format": "counterpoint step cost 1", "format": "counterpoint step cost 1"}',
        *(json.dumps({"format": FORMAT, "key": KEY, "points": [one]}) for one in BEYOND),
        "[" * 100_000,
        '{"points": ' * 100_000,
        "9" * 5000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_file_that_is_not_ours_is_left_alone(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(text.encode("latin-1"))
    foreign = tmp_path / "notes.txt"
    foreign.write_text("mine")
    caplog.set_level(logging.WARNING)
    assert kept(tmp_path) == (POINTS, 1)
    assert path.read_bytes() == text.encode("latin-1")
    assert sorted(tmp_path.iterdir()) == sorted([path, foreign])
    assert "left alone and not used" in caplog.text


def test_what_cannot_be_written_is_measured_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    caplog.set_level(logging.WARNING)
    for place in ("file", "file/in/it", "n\0l", "x" * 300):
        caplog.clear()
        assert kept(tmp_path / place) == (POINTS, 1)
        assert "cannot be written" in caplog.text


def test_the_curve_of_any_points_that_are_kept_is_finite() -> None:
    for points in ([(1, 1e-300), (2, 1e12)], [(2**31 - 1, 1e-300), (2**31, 1e12)], [(1, 5e-324)]):
        cost = curve(points, 70_000)
        assert ((cost > 0) & (cost < float("inf"))).all()


def test_a_folder_in_the_place_of_the_file_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept(tmp_path)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    caplog.set_level(logging.WARNING)
    assert kept(tmp_path) == (POINTS, 1)
    assert path.is_dir()
    assert "not a regular file" in caplog.text
