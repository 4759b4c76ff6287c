"""The result of a step as the engine hands it in, checked against the plan before anything is changed.

Knows counts and lengths; knows nothing about what a result does to a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.scheduling.step_plan import StepPlan


@dataclass(frozen=True)
class StepResult:
    """Arguments of commit, drafts always present; each list follows the plan's requests."""

    request_ids: list[int]  # [R]
    tokens: list[int]  # [sum(counts)]
    counts: list[int]  # [R]
    finished: list[bool]  # [R]
    draft_tokens: list[int]  # [sum(draft_counts)]
    draft_counts: list[int]  # [R]

    def new_tokens(self) -> list[list[int]]:
        """Tokens of each request: [R][counts]."""
        return _split(self.tokens, self.counts)

    def drafts(self) -> list[list[int]]:
        """Drafts of each request: [R][draft_counts]."""
        return _split(self.draft_tokens, self.draft_counts)

    def check(self, plan: StepPlan, nextn: int) -> None:
        """Raises ValueError naming the argument unless the result is one of this plan."""
        if self.request_ids != plan.request_ids:
            raise ValueError(f"request_ids {self.request_ids} are not the plan's {plan.request_ids}")
        for name in ("counts", "finished", "draft_counts"):
            if len(getattr(self, name)) != plan.num_requests:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} entries, the plan {plan.num_requests} requests"
                )
        for index in range(plan.num_requests):
            self._check_count(plan, index)
        if sum(self.counts) != len(self.tokens) or min(self.tokens, default=0) < 0:
            raise ValueError(f"tokens are {len(self.tokens)}, counts add up to {sum(self.counts)}; none is negative")
        if not all(0 <= count <= nextn for count in self.draft_counts):
            raise ValueError(f"draft_counts {self.draft_counts} must be in 0 .. {nextn}")
        if sum(self.draft_counts) != len(self.draft_tokens) or min(self.draft_tokens, default=0) < 0:
            raise ValueError(
                f"draft_tokens are {len(self.draft_tokens)}, their counts {self.draft_counts}; none is negative"
            )

    def _check_count(self, plan: StepPlan, index: int) -> None:
        count, rows = self.counts[index], plan.rows_of(index)
        least, most = 0, len(self.tokens)
        if plan.is_live(index):
            room = plan.requests[index].limit - len(plan.requests[index].tokens)
            most = 0 if plan.sample_rows[index] < 0 else min(rows, room) if plan.kind == "decode" else 1
            least = 0 if self.finished[index] else min(1, most)
        if not least <= count <= most:
            raise ValueError(
                f"counts[{index}] of request {plan.request_ids[index]} is {count}, allowed {least} .. {most}"
            )


def _split(flat: list[int], counts: list[int]) -> list[list[int]]:
    parts = []
    begin = 0
    for count in counts:
        parts.append(flat[begin : begin + count])
        begin += count
    return parts
