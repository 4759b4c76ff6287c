"""Fits the temperatures that make confidences absolute: `python -m reference.calibration --help`.

Knows rows of confidence logits and how many drafts were kept; knows nothing about models or text. The rows must come
from full-length verification with all temperatures at 1, under the rule and the temperature regime that will serve.
One JSON object a line: {"logits": [z of every slot], "judged": slots whose fate is known, "accepted": slots kept}.

Sequential temperature scaling: slot after slot, the temperature of a grid that makes the running survival probability
best calibrated. Source: serving specification §1.6; DSpark (DeepSpec), §3.2.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from reference.spec.errors import CounterpointError, RequestError, shown
from reference.spec.speculation import ConfidenceTable, Regime, Verification

logger = logging.getLogger(__name__)

GRID = np.logspace(-1.0, 1.0, 41)
BINS = 15
SMALLEST = 1e-8


@dataclasses.dataclass(frozen=True)
class Row:
    """One verified block.

    logits: raw confidences, one a slot. judged: how many slots, from the first, are known to be kept or not; after an
    accepted stop token nothing is. accepted: how many were kept, at most `judged`.

    Raises:
        RequestError: these laws do not hold.
    """

    logits: tuple[float, ...]
    judged: int
    accepted: int

    def __post_init__(self) -> None:
        whole = type(self.judged) is int and type(self.accepted) is int
        if not whole or not 0 <= self.accepted <= self.judged <= len(self.logits):
            numbers = f"accepted {shown(self.accepted)}, judged {shown(self.judged)} of {len(self.logits)} slots"
            raise RequestError(f"{numbers}: accepted <= judged <= slots must hold")
        if not all(type(z) in (int, float) and abs(z) <= sys.float_info.max for z in self.logits):
            raise RequestError(f"logits are {shown(self.logits)}; they must be finite numbers")


def calibration_error(predicted: np.ndarray, outcome: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error, Σ_bin n_bin/n · |mean prediction − mean outcome|, over equal bins of [0, 1].

    Args:
        predicted: [N] probabilities. outcome: [N] bool. Without rows the error is 0.
    """
    if not len(predicted):
        return 0.0
    p = np.clip(predicted, SMALLEST, 1 - SMALLEST)  # [N]
    place = np.minimum((p * bins).astype(np.int64), bins - 1)  # [N]
    gap = np.bincount(place, weights=p - outcome, minlength=bins)  # [bins]
    return float(np.abs(gap).sum() / len(p))


def sigmoid(z: np.ndarray) -> np.ndarray:
    """1 / (1 + e^−z) without overflow: [N] -> [N]."""
    return np.exp(-np.logaddexp(0.0, -z))  # [N]


def fit(rows: Sequence[Row], rule: Verification, regime: Regime) -> ConfidenceTable:
    """The table of a set of rows.

    Raises:
        RequestError: no rows, rows of different lengths, or a slot that no row judges.
    """
    slots = {len(row.logits) for row in rows}
    if len(slots) != 1 or 0 in slots:
        raise RequestError(f"rows have {sorted(slots)} slots; accepted: at least one row, all of one length above 0")
    logits = np.array([row.logits for row in rows], dtype=np.float64)  # [N, slots]
    judged = np.array([row.judged for row in rows])  # [N]
    accepted = np.array([row.accepted for row in rows])  # [N]
    before, after, temperatures = [], [], []
    raw, survival = np.ones(len(rows)), np.ones(len(rows))  # [N], [N]
    for k in range(logits.shape[1]):
        known = judged > k  # [N]
        if not known.any():
            raise RequestError(f"no row judges slot {k + 1}; collect rows with full-length verification")
        kept = accepted[known] > k  # [n]
        z = logits[:, k]  # [N]
        errors = [calibration_error((survival * sigmoid(z / t))[known], kept) for t in GRID]  # [grid]
        temperatures.append(float(GRID[int(np.argmin(errors))]))
        raw = raw * sigmoid(z)  # [N]
        survival = survival * sigmoid(z / temperatures[-1])  # [N]
        before.append(calibration_error(raw[known], kept))
        after.append(min(errors))
    return ConfidenceTable(
        rule=rule,
        regime=regime,
        temperatures=tuple(temperatures),
        rows=len(rows),
        error_before=tuple(before),
        error_after=tuple(after),
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        RequestError: a line that is no row, with its number.
        OSError: the file cannot be read.
    """
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            rows.append(_row(json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{path}, line {number}: {error}") from error
    return rows


def _row(record: Any) -> Row:
    names = {field.name for field in dataclasses.fields(Row)}
    if not isinstance(record, dict) or set(record) != names or not isinstance(record["logits"], list):
        raise RequestError(f"got {shown(record)}; accepted: an object with {', '.join(sorted(names))}")
    return Row(tuple(record["logits"]), record["judged"], record["accepted"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. 0: the table was written; 2: it was not."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.calibration", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", type=Path, help="jsonl file of rows")
    parser.add_argument("--rule", required=True, choices=get_args(Verification), help="rule the rows come from")
    parser.add_argument("--regime", required=True, choices=get_args(Regime), help="temperature 0, or above")
    parser.add_argument("--output", required=True, type=Path, help="table file to write")
    options = parser.parse_args(arguments)
    try:
        table = fit(read_rows(options.rows), options.rule, options.regime)
        table.to_file(options.output)
    except (CounterpointError, OSError) as error:
        logger.error("%s", error)
        return 2
    for k, temperature in enumerate(table.temperatures):
        errors = (100 * table.error_before[k], 100 * table.error_after[k])
        logger.info("slot %d: temperature %.4g, calibration error %.2f %% -> %.2f %%", k + 1, temperature, *errors)
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
