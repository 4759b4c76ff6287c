"""Known-bad cases and why each is known to be bad. Empty is the aim.

A case listed here must differ: as long as it does, its differences are known and do not count; the day it agrees, the
run fails until its line is taken out. Knows names of cases only.
"""

from __future__ import annotations

from collections.abc import Mapping

from equivalence.cases import Case
from equivalence.findings import Findings

KNOWN_BAD: Mapping[tuple[str, str], str] = {}
"""(check, name of the case) -> why it differs and what would end that."""


def settle(case: Case, findings: Findings, known_bad: Mapping[tuple[str, str], str] = KNOWN_BAD) -> str:
    """Take known differences out of the findings, or put an unexpected agreement in.

    Returns: why the case is known to be bad; empty for every other case.
    """
    reason = known_bad.get((case.check, case.name), "")
    if not reason:
        return ""
    if findings.differences:
        findings.differences.clear()
    else:
        findings.differ(case.name, "ledger", f"agrees, but the ledger says that it cannot: {reason}")
    return reason
