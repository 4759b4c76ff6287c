"""What a run of blocks amounts to: tokens a step, and how often drafts were kept, by slot. Counts; judges nothing.

Source: serving specification §1.12. Figures with the bonus token are named τ, rates of drafts alone α, β and ρ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference.speculation import Block


@dataclass(frozen=True)
class Acceptance:
    """Counts over blocks; lists are by draft slot, the first first.

    blocks: steps of requests. committed: their tokens, the one after the drafts included. verified: blocks in which
    the slot was in the verified prefix. reached: of them, those in which every slot before it was kept and none of
    those ended the completion. accepted: those in which it was kept too.
    """

    blocks: int
    committed: int
    verified: list[int]
    reached: list[int]
    accepted: list[int]

    @classmethod
    def of(cls, blocks: Sequence[Block], nextn: int) -> Acceptance:
        """The counts of some blocks of at most `nextn` drafts."""
        slots = range(nextn)
        judged = [(block, block.calibration_row().judged) for block in blocks]
        return cls(
            blocks=len(blocks),
            committed=sum(block.committed for block in blocks),
            verified=[sum(len(block.drafts) > k for block in blocks) for k in slots],
            reached=[sum(known > k and block.accepted >= k for block, known in judged) for k in slots],
            accepted=[sum(block.accepted > k for block in blocks) for k in slots],
        )

    @property
    def tokens_per_block(self) -> float:
        """τ: tokens that a request commits in a step, the bonus included."""
        return self.committed / self.blocks if self.blocks else 0.0

    @property
    def unconditional(self) -> list[float]:
        """α_k: share of all blocks that kept slots 1..k."""
        return [accepted / self.blocks if self.blocks else 0.0 for accepted in self.accepted]

    @property
    def conditional(self) -> list[float]:
        """β_k: share that kept slot k of those that reached it."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return [accepted / reached if reached else 0.0 for accepted, reached in pairs]

    @property
    def per_draft(self) -> float:
        """ρ: kept drafts over verified drafts."""
        return sum(self.accepted) / sum(self.verified) if sum(self.verified) else 0.0
