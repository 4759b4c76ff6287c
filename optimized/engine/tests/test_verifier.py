"""Logprobs and ranks against their definitions, masks, rows from which nothing can be drawn, blocks that fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from optimized.engine.block import Block
from optimized.engine.door import Request
from optimized.engine.sequence import Sequence
from optimized.engine.structured.matcher import GrammarError
from optimized.engine.verifier import Drawn, Verifier
from reference.spec.errors import EngineError
from reference.spec.outputs import Logprob
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci


def sequence(index: int, **params: Any) -> Sequence:
    settings = SamplingParams(**{"temperature": 0.0, **params})
    request = Request(str(index), None, [1, 2], settings, seed=2**64 - 1 - index, max_tokens=8)
    return Sequence(index, 0, request, frozenset(settings.stop_token_ids), None)


def draw_tokens(logits: torch.Tensor, sequences: list[Sequence]) -> list[Drawn]:
    """One token a sequence, by blocks without drafts."""
    verifier = Verifier(logits.shape[1], "raw_logprobs")
    verified = verifier.launch(logits, verifier.prepare([Block(one) for one in sequences]))
    return [one for (one,) in verified.collect()]


def defined_logprobs(row: np.ndarray, token: int, count: int) -> dict[int, Logprob]:
    """Plain definitions, one token at a time."""
    total = math.log(sum(math.exp(value - row.max()) for value in row)) + row.max()
    order = sorted(range(len(row)), key=lambda one: (-row[one], one))
    return {
        one: Logprob(float(np.float32(row[one] - total)), 1 + int((row > row[one]).sum()))
        for one in [token, *order[:count]]
    }


@pytest.mark.parametrize("levels", [3, 1000])
def test_logprobs_and_ranks_are_what_they_are_defined_to_be(levels: int, rng: np.random.Generator) -> None:
    logits = rng.integers(0, levels, size=(12, 40)) * (6.0 / levels)
    counts = [None, 0, 1, 2, 5, 39, 40, 100, None, 3, 7, 0]
    sequences = [sequence(i, logprobs=count, temperature=float(i % 2)) for i, count in enumerate(counts)]
    for row, count, drawn in zip(logits, counts, draw_tokens(torch.from_numpy(logits), sequences), strict=True):
        if count is None:
            assert drawn.logprobs == {}
            continue
        expected = defined_logprobs(row, drawn.token, count)
        assert {token: one.rank for token, one in drawn.logprobs.items()} == {
            t: one.rank for t, one in expected.items()
        }
        for token, one in drawn.logprobs.items():
            assert one.logprob == pytest.approx(expected[token].logprob, abs=1e-6)
        assert drawn.logprob == drawn.logprobs[drawn.token].logprob


def test_logprobs_are_raw_whatever_is_banned_or_filtered() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)
    banned = sequence(0, logprobs=1, min_tokens=1, max_tokens=2, stop_token_ids=[0], top_k=1)
    (drawn,) = draw_tokens(logits, [banned])
    assert drawn.token == 1
    assert list(drawn.logprobs) == [1, 0]
    assert drawn.logprobs[1].rank == 2
    assert drawn.logprob == pytest.approx(float(torch.log_softmax(logits[0], 0)[1]))


def test_a_row_does_not_depend_on_its_neighbours(rng: np.random.Generator) -> None:
    logits = torch.from_numpy(rng.normal(0, 2, size=(32, 200)))
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 9},
        {"temperature": 2.0, "top_p": 0.5},
    ]
    sequences = [sequence(i, logprobs=3, **settings[i % 4]) for i in range(32)]
    together = draw_tokens(logits, sequences)
    assert together == [draw_tokens(logits[i : i + 1], sequences[i : i + 1])[0] for i in range(32)]
    order = rng.permutation(32)
    assert draw_tokens(logits[order], [sequences[i] for i in order]) == [together[i] for i in order]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ([1.0, math.nan, 0.0], "the logits hold NaN"),
        ([1.0, math.inf, math.inf], "the logits hold +inf"),
        ([-math.inf] * 3, "every token is masked"),
    ],
)
def test_a_bad_row_is_an_error_of_its_own(row: list[float], complaint: str) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], row, [5.0, 1.0, 2.0]], dtype=torch.float64)
    first, bad, last = draw_tokens(logits, [sequence(i, logprobs=1, temperature=i % 2) for i in range(3)])
    assert (first.token, last.token) == (2, 0)
    assert complaint in str(bad.error)


def test_banning_everything_is_an_error() -> None:
    (drawn,) = draw_tokens(
        torch.zeros(1, 3, dtype=torch.float64), [sequence(0, min_tokens=1, stop_token_ids=[0, 1, 2, 9])]
    )
    assert "every token is masked" in str(drawn.error)


def test_no_rows_give_no_tokens() -> None:
    assert draw_tokens(torch.zeros(0, 3, dtype=torch.float64), []) == []


class Refusing:
    """A matcher whose grammar fails on any draft."""

    words = torch.full((1,), -1, dtype=torch.int32)

    def words_through(self, drafts: tuple[int, ...]) -> torch.Tensor:
        if drafts:
            raise GrammarError("following its grammar takes too much time")
        return self.words[None]


def test_a_grammar_that_fails_on_drafts_is_an_error_of_its_sequence_alone() -> None:
    sequences = [sequence(i) for i in range(3)]
    for one in sequences[1:]:
        one.matcher = Refusing()  # type: ignore[assignment]
    blocks = [Block(sequences[0], (2, 1)), Block(sequences[1], (2,)), Block(sequences[2])]
    verifier = Verifier(3, "raw_logprobs", nextn=2)
    rows = verifier.prepare(blocks)
    assert [one.pending_error for one in sequences] == [None, "following its grammar takes too much time", None]
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 6, dtype=torch.float64)
    drawn = verifier.launch(logits, rows).collect()
    assert [[one.token for one in block] for block in drawn] == [[2, 2], [2, 2], [2]]


def test_drafts_of_the_ratio_rule_need_the_rows_that_they_were_drawn_from() -> None:
    verifier = Verifier(3, "raw_logprobs", "ratio", nextn=1)
    logits = torch.zeros(2, 3, dtype=torch.float64)
    drawn, greedy = sequence(0, temperature=1.0), sequence(1)
    for rows in (None, torch.zeros(1, 1, 3, dtype=torch.float64)):
        with pytest.raises(EngineError, match="without the rows"):
            verifier.launch(logits, verifier.prepare([Block(drawn, (1,))]), rows)
        verified = verifier.launch(logits, verifier.prepare([Block(greedy, (0,))]), rows)
        assert verified.accepted.tolist() == [1]
