"""What a step costs by its number of rows: measured at start-up, kept in a folder between starts.

A step runs at the next bucket of rows, so up to the largest densely measured size the curve is a staircase; beyond, it
is linear between points that are both beyond, and after the last one goes on with the last slope. It never falls. Knows
points and files; knows nothing about how a step is made. Source: serving specification §1.8.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimized.worker.input_batch import bucket_rows
from reference.spec.json_file import read_object

Points = list[tuple[int, float]]
"""(rows, milliseconds), rows rising."""

FORMAT = "counterpoint step cost 1"
#: Every bucket of rows up to this one is measured.
DENSE_ROWS = 64
REPEATS = 5
#: Milliseconds of a step that is not worth the start-up's time: larger ones go on with the slope up to there.
SLOW = 500.0
#: Kept points beyond these are none of a step; below them a curve stays finite for any number of rows.
MOST_ROWS, LONGEST = 2**31, 1e12

_log = logging.getLogger(__name__)


def probe_sizes(most_rows: int) -> list[int]:
    """Sizes to measure for steps of up to `most_rows` rows: every bucket up to DENSE_ROWS, then half as many more, then
    twice as many each."""
    last = bucket_rows(most_rows)
    sizes = sorted({bucket_rows(rows) for rows in range(1, min(last, DENSE_ROWS) + 1)})
    beyond = DENSE_ROWS * 3 // 2
    while sizes[-1] < last:
        sizes.append(min(beyond, last))
        beyond *= 2
    return sizes


def measure(time_steps: Callable[[int, int], Sequence[float]], most_rows: int) -> Points:
    """The median of REPEATS steps of every probe size; none larger than the first beyond DENSE_ROWS that is SLOW.

    The last size may be beyond what sequences can fill; a step of all of their rows is padded to it.

    Args:
        time_steps: (rows, repeats) -> milliseconds of each.
    """
    points: Points = []
    for rows in probe_sizes(most_rows):
        points.append((rows, statistics.median(time_steps(min(rows, most_rows), REPEATS))))
        if rows > DENSE_ROWS and points[-1][1] > SLOW:
            break
    return points


def curve(points: Points, most_rows: int) -> NDArray[np.float64]:
    """[most_rows + 1] milliseconds of a step of 0, 1, … rows; entry 0 is that of one row."""
    sizes = np.array([rows for rows, _ in points], dtype=np.float64)
    times = np.array(list(itertools.accumulate((time for _, time in points), max)))
    rows = np.arange(most_rows + 1, dtype=np.float64)
    place = np.searchsorted(sizes, rows)  # the smallest point that is not smaller
    stairs = times[np.minimum(place, len(sizes) - 1)]
    dense = int(np.searchsorted(sizes, DENSE_ROWS, side="right"))  # points up to DENSE_ROWS
    if len(sizes) < 2:
        return stairs
    right = np.clip(place, 1, len(sizes) - 1)
    left = right - 1
    slope = (times[right] - times[left]) / (sizes[right] - sizes[left])
    straight = times[left] + slope * (rows - sizes[left])
    exact = sizes[np.minimum(place, len(sizes) - 1)] == rows
    return np.where((place < len(sizes)) & ((place <= dense) | exact), stairs, straight)


def kept_points(
    folder: str | os.PathLike[str] | None, key: Mapping[str, Any], measured: Callable[[], Points]
) -> Points:
    """The points of a model, device and options: those that the folder keeps, else measured ones, which it then keeps.

    A file of another form, or for another key, is left as it is, and is not used.
    """
    if folder is None:
        return measured()
    text = json.dumps(key, sort_keys=True)
    path = Path(folder) / f"step-cost-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    if os.path.lexists(path):
        try:
            return _read(path, key)
        except (OSError, ValueError) as error:
            _log.warning("step_cost_folder: %s is left alone and not used: %s", path, error)
            return measured()
    points = measured()
    try:
        _write(path, {"format": FORMAT, "key": dict(key), "points": points})
    except (OSError, ValueError) as error:
        _log.warning("step_cost_folder: %s cannot be written: %s", path, error)
    return points


def _read(path: Path, key: Mapping[str, Any]) -> Points:
    if not path.is_file():
        raise ValueError("it is not a regular file")
    record = read_object(path)
    if record.get("format") != FORMAT or record.get("key") != dict(key):
        raise ValueError(f"it is no {FORMAT} of this model, device and options")
    points = record.get("points")
    if not isinstance(points, list) or not points or not all(_is_point(one) for one in points):
        raise ValueError("its points are not (rows, milliseconds) of steps")
    if any(one[0] >= other[0] for one, other in itertools.pairwise(points)):
        raise ValueError("its rows do not rise")
    return [(rows, float(time)) for rows, time in points]


def _is_point(one: Any) -> bool:
    if not isinstance(one, list) or len(one) != 2 or type(one[0]) is not int or not 1 <= one[0] <= MOST_ROWS:
        return False
    return type(one[1]) in (int, float) and 0 < one[1] <= LONGEST


def _write(path: Path, record: dict[str, Any]) -> None:
    """All of it or nothing, and never over a file that has come meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.link(name, path)
    except FileExistsError:
        _log.debug("%s was written meanwhile", path)
    finally:
        os.unlink(name)
