"""`counterpoint ops`: the table operation x backend x provider x state. Knows how to print it, and nothing else."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from optimized import ops
from optimized.cli import EXIT_OK

COLUMNS = ("op", "backend", "provider", "state", "row_invariant")


def run(options: argparse.Namespace) -> int:
    """Prints the table."""
    rows = ops.table()
    if options.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
        return EXIT_OK
    cells = [COLUMNS, *(tuple(_cell(getattr(row, column)) for column in COLUMNS) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    for line in cells:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")
    return EXIT_OK


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else ("yes" if value else "no")
