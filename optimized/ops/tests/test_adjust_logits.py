"""Bias, penalties and masks against their definitions, one element at a time, and row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from optimized.ops.adjust_logits import Adjustments, Entries, adjust_logits

pytestmark = pytest.mark.ci

ROWS, VOCAB = 5, 23


def entries(rng: np.random.Generator, low: float, high: float, rows: list[int]) -> Entries:
    """Random values at random places of some rows."""
    places = [(row, int(token)) for row in rows for token in rng.choice(VOCAB, 6, replace=False)]
    index = torch.tensor(places)
    return Entries(index[:, 0], index[:, 1], torch.from_numpy(rng.uniform(low, high, len(places))))


def defined(logits: torch.Tensor, what: Adjustments) -> list[list[float]]:
    """In the order of the fields."""
    z = logits.tolist()
    for name in ("bias", "repetition", "frequency", "presence", "banned"):
        if name == "banned" and what.allowed is not None:
            for row, token in (~what.allowed).nonzero().tolist():
                z[row][token] = -math.inf
        one = getattr(what, name)
        columns = [] if one is None else [column.tolist() for column in (one.rows, one.ids, one.values)]
        for row, token, value in zip(*columns, strict=True):
            old = z[row][token]
            z[row][token] = {
                "bias": old + value,
                "repetition": old / value if old > 0 else old * value,
                "frequency": old - value,
                "presence": old - value,
                "banned": -math.inf,
            }[name]
    return z


def adjustments(rng: np.random.Generator) -> Adjustments:
    return Adjustments(
        entries(rng, -5, 5, [0, 1, 2]),
        entries(rng, 0.3, 3, [1, 2, 4]),
        entries(rng, -2, 2, [0, 4]),
        entries(rng, -2, 2, [4, 2]),
        torch.from_numpy(rng.random((ROWS, VOCAB)) < 0.7),
        entries(rng, 0, 1, [3]),
    )


def of_row(one: Entries, row: int) -> Entries:
    mine = one.rows == row
    return Entries(torch.zeros_like(one.rows[mine]), one.ids[mine], one.values[mine])


def test_every_element_is_what_it_is_defined_to_be(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(0, 3, (ROWS, VOCAB)))
    logits[2, :5] = -torch.inf
    kept = logits.clone()
    what = adjustments(rng)
    assert adjust_logits(logits, what).tolist() == defined(logits, what)
    assert torch.equal(logits, kept)


def test_a_row_is_the_same_alone(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(0, 3, (ROWS, VOCAB)))
    what = adjustments(rng)
    together = adjust_logits(logits, what)
    for row in range(ROWS):
        names = ("bias", "repetition", "frequency", "presence", "banned")
        alone = {name: of_row(getattr(what, name), row) for name in names}
        allowed = None if what.allowed is None else what.allowed[row : row + 1]
        adjusted = adjust_logits(logits[row : row + 1], Adjustments(allowed=allowed, **alone))
        assert torch.equal(adjusted[0], together[row])
