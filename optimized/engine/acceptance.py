"""What has become of drafts: tokens a block, how often drafts were kept, by slot, and how true their confidences were.

Counts; judges nothing. Figures with the token after the drafts are named tau, rates of drafts alone rho and those by
slot; the definitions are those of `reference.acceptance_statistics` and `reference.calibration`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

#: Equal bins of [0, 1] of the expected calibration error.
BINS = 15
SMALLEST = 1e-8


class Acceptance:
    """Counts over the blocks of all sequences; lists are by draft slot, the first first.

    blocks: verified, each by one sequence in one step. committed: their tokens, the one after the drafts included.
    verified: blocks in which the slot was verified. reached: of them, those in which every slot before it was kept and
    ended nothing. accepted: those in which it was kept too. lengths: blocks by how many drafts were verified. lags: by
    how many steps old they were, the confidences that decided about a budget.
    """

    def __init__(self, nextn: int = 0) -> None:
        self.blocks = 0
        self.committed = 0
        self.verified = [0] * nextn
        self.reached = [0] * nextn
        self.accepted = [0] * nextn
        self.lengths: Counter[int] = Counter()
        self.lags: Counter[int] = Counter()
        self._gaps = np.zeros((nextn, BINS))
        self._judged = [0] * nextn

    def count(self, length: int, judged: int, accepted: int, committed: int, survival: Sequence[float]) -> None:
        """One block.

        Args:
            length: drafts that were verified. judged: those of them, from the first, whose fate is known. accepted:
                those that were kept. committed: tokens that the sequence took. survival: what was predicted, a slot.
        """
        self.blocks += 1
        self.committed += committed
        self.lengths[length] += 1
        for slot in range(length):
            self.verified[slot] += 1
            self.reached[slot] += judged > slot and accepted >= slot
            self.accepted[slot] += accepted > slot
        for slot, predicted in enumerate(survival[:judged]):
            likely = min(max(predicted, SMALLEST), 1 - SMALLEST)
            self._gaps[slot, min(int(likely * BINS), BINS - 1)] += likely - (accepted > slot)
            self._judged[slot] += 1

    @property
    def tau(self) -> float:
        """Tokens that a sequence takes in a block, the one after the drafts included."""
        return self.committed / self.blocks if self.blocks else 0.0

    @property
    def rho(self) -> float:
        """Kept drafts over verified drafts."""
        return sum(self.accepted) / sum(self.verified) if sum(self.verified) else 0.0

    @property
    def unconditional(self) -> list[float]:
        """By slot, the share of all blocks that kept it and all before it."""
        return [accepted / self.blocks if self.blocks else 0.0 for accepted in self.accepted]

    @property
    def conditional(self) -> list[float]:
        """By slot, the share that kept it of those that reached it."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [accepted / reached if reached else 0.0 for accepted, reached in pairs]

    @property
    def confidence_error(self) -> list[float]:
        """By slot, the expected calibration error of the survival that was predicted."""
        gaps = np.abs(self._gaps).sum(axis=1).tolist()
        return [gap / count if count else 0.0 for gap, count in zip(gaps, self._judged, strict=True)]

    @property
    def mean_length(self) -> float:
        """Drafts that were verified a block."""
        return sum(self.verified) / self.blocks if self.blocks else 0.0

    @property
    def mean_lag(self) -> float:
        """Steps."""
        return sum(lag * count for lag, count in self.lags.items()) / max(1, self.lags.total())

    def describe(self) -> str:
        """A part of a log line."""
        slots = " ".join(f"{share:.2f}" for share in self.conditional)
        errors = " ".join(f"{error:.3f}" for error in self.confidence_error)
        return (
            f"tau {self.tau:.2f}, {self.mean_length:.2f} drafts a block, kept {self.rho:.2f} of them, by slot {slots}, "
            f"confidence error {errors}"
        ) + (f", lag {self.mean_lag:.1f} steps" if self.lags else "")
