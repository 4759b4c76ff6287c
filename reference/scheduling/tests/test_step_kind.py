"""The kind of a step follows from the votes, and the votes from the minimum over all ranks."""

import pytest

from reference.scheduling.limits import Limits
from reference.scheduling.step_kind import Ballot, History, Tally, choose

pytestmark = pytest.mark.ci

LIMITS = Limits(9, 4, 4, 2, 8, 16, 0, 1, 8, 0.9, 1, 70, 100, 500, 1000)
IDLE = Ballot(False, False, False, False, False)
WANTS = Ballot(True, True, True, False, False)
DECODES = Ballot(True, True, False, False, False)
WAITS = Ballot(True, False, True, False, False)
PARTIAL = Ballot(True, True, True, True, False)
OVERDUE = Ballot(True, True, True, False, True)
STUCK = Ballot(True, False, False, False, False)


def kind_of(ballots: list[Ballot], decodes: int, prefills: int = 0) -> str:
    """What ranks with these ballots do."""
    columns = zip(*(ballot.numbers() for ballot in ballots), strict=True)
    return choose(Tally.of([min(column) for column in columns]), History(decodes, prefills), LIMITS)


@pytest.mark.parametrize(
    ("decodes", "kind"),
    [(0, "decode"), (1, "decode"), (70, "decode"), (99, "decode"), (100, "prefill"), (140, "decode"), (700, "prefill")],
)
def test_one_rank_that_wants_a_prefill_waits_for_the_vote_of_any(decodes: int, kind: str) -> None:
    assert kind_of([WANTS, DECODES], decodes) == kind


@pytest.mark.parametrize(
    ("decodes", "kind"), [(0, "prefill"), (1, "decode"), (69, "decode"), (70, "prefill"), (140, "prefill")]
)
def test_ranks_that_all_want_a_prefill_have_it_at_the_vote_of_all(decodes: int, kind: str) -> None:
    assert kind_of([WANTS, WANTS], decodes) == kind


def test_a_prefill_starts_at_once_when_nothing_runs_anywhere() -> None:
    assert kind_of([WAITS, IDLE], decodes=33) == "prefill"


def test_a_partial_prompt_and_an_overdue_head_go_on_at_once() -> None:
    assert kind_of([PARTIAL, DECODES], decodes=0) == kind_of([OVERDUE, IDLE], decodes=7) == "prefill"


def test_prefill_steps_in_a_row_are_bounded_while_a_rank_can_decode() -> None:
    assert kind_of([PARTIAL, DECODES], decodes=0, prefills=8) == "decode"
    assert kind_of([WAITS, WAITS], decodes=0, prefills=8) == "prefill"


def test_no_request_is_no_step_and_no_way_on_is_a_stall() -> None:
    assert (kind_of([IDLE, IDLE], 0), kind_of([STUCK, IDLE], 0)) == ("idle", "stuck")
