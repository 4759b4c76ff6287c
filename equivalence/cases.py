"""What one case of a check is, and what a run of checks is asked for; knows no check and compares nothing."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GOLDEN_VARIABLE = "COUNTERPOINT_GOLDEN"

SHIPPED_GOLDEN = Path(__file__).parent / "golden"

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True)
class Case:
    """One repeatable unit of a check: the name a person reads and everything needed to run it again.

    check: the check it belongs to; name: unique inside the check; params: JSON values only.
    """

    check: str
    name: str
    params: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """The name as a file name."""
        return re.sub(r"[^A-Za-z0-9_.=-]+", "-", f"{self.check}-{self.name}")


@dataclass(frozen=True)
class Options:
    """What the command line chose.

    backend: the backend of `optimized` under test; cases: how many generated cases (None: the check's default);
    seed: root of every generated case; only: run cases whose name begins with one of these or matches it as a pattern
    (empty: all); fail_fast: stop after the first case that differs.
    """

    backend: str = "cpu"
    cases: int | None = None
    seed: int = 0
    only: tuple[str, ...] = ()
    fail_fast: bool = False

    def selects(self, name: str) -> bool:
        """Whether a case of that name is to be run."""
        return not self.only or any(name.startswith(each) or fnmatch.fnmatch(name, each) for each in self.only)


def golden_folder() -> Path:
    """The folder of golden packs: $COUNTERPOINT_GOLDEN where set and not empty, else the shipped subset."""
    return Path(os.environ.get(GOLDEN_VARIABLE) or SHIPPED_GOLDEN)


def derived_seed(*parts: str | int) -> int:
    """A 63-bit seed that depends on every part and on nothing else (SHA-256 of their text)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
