"""Whether a smaller case still shows what a larger one showed; knows no check."""

from __future__ import annotations

import logging
from collections.abc import Callable

from equivalence.cases import Case, Options
from equivalence.findings import Findings

logger = logging.getLogger(__name__)


def differs(run: Callable[[Case, Options], Findings], case: Case, options: Options) -> bool:
    """Whether a case differs or raises: whatever made the whole case raise may make the smaller one raise too."""
    try:
        return bool(run(case, options).differences)
    except Exception:
        logger.debug("smaller case of %s raised", case.name, exc_info=True)
        return True
