"""Part `engine` of check `model`: see below."""

from __future__ import annotations

from equivalence.cases import Case, Options
from equivalence.findings import Findings


def cases(seed: int, count: int) -> list[Case]:
    """Generated cases."""
    return []


def run(case: Case, options: Options) -> Findings:
    """Run one."""
    return Findings()
