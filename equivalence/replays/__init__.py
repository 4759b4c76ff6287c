"""Replay files: one case as JSON, enough to run it again; knows no check.

A run writes one beside this module for every case, backend and seed that differs. A file that is committed is a
regression test.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from equivalence.cases import Case, Options
from equivalence.errors import SetupError

FORMAT = 1

FOLDER = Path(__file__).parent

logger = logging.getLogger(__name__)


def write(case: Case, options: Options, folder: Path = FOLDER) -> Path | None:
    """Write the replay of a case. Returns the file, or None (with a warning) where the folder cannot be written."""
    record = {
        "format": FORMAT,
        "check": case.check,
        "name": case.name,
        "params": dict(case.params),
        "backend": options.backend,
        "seed": options.seed,
    }
    path = folder / f"{case.slug}-{options.backend}-seed-{options.seed}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        logger.warning("replay of %s not written: %s", case.name, error)
        return None
    return path


def read(path: Path) -> tuple[Case, Options]:
    """Read a replay. Raises SetupError naming the file and what is wrong with it."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise SetupError(f"replay {path}: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise SetupError(f"replay {path}: not a replay of format {FORMAT}")
    wrong = [key for key in ("check", "name", "backend") if not isinstance(record.get(key), str)]
    if wrong or not isinstance(record.get("params"), dict) or not isinstance(record.get("seed"), int):
        raise SetupError(f"replay {path}: needs check, name, backend (text), params (object) and seed (integer)")
    case = Case(record["check"], record["name"], record["params"])
    return case, Options(backend=record["backend"], seed=record["seed"])
