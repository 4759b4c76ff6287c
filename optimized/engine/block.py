"""A sequence's rows of one step whose logits are wanted: drafts to be verified, and the row after them.

Knows ids; knows nothing about logits or what becomes of the drafts.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimized.engine.sequence import Sequence


@dataclass(frozen=True)
class Block:
    """1 + L rows of logits, row k after the sequence's tokens and the first k drafts.

    drafts: L ids, the first ones of what was drafted; none in a step that does not verify.
    source: where the ratio rule finds what the drafts were drawn from, by number of its state slot; -1: nowhere.
    """

    sequence: Sequence
    drafts: tuple[int, ...] = ()
    source: int = -1

    def __len__(self) -> int:
        """Rows of logits."""
        return 1 + len(self.drafts)
