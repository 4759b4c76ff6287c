"""What benchmarks' command lines share: what is wrong with one is told in a line, before anything is measured."""

from __future__ import annotations

import argparse
import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from reference.spec.errors import CounterpointError

Main = Callable[[Sequence[str]], int]


def told_in_a_line(main: Main) -> Main:
    """`main` of a benchmark, but what the engine refuses is a line on stderr and exit status 2."""

    @functools.wraps(main)
    def run(arguments: Sequence[str]) -> int:
        try:
            return main(arguments)
        except CounterpointError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2

    return run


def at_least(least: int) -> Callable[[str], int]:
    """The type of an integer that is not below `least`."""

    def integer(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is not at least {least}")
        return value

    return integer


def sizes(text: str) -> list[int]:
    """Integers above 0, comma separated."""
    return [at_least(1)(part) for part in text.split(",")]


def temperatures(text: str) -> list[float]:
    """Finite numbers not below 0, comma separated."""
    values = [float(part) for part in text.split(",")]
    for value in values:
        if not 0 <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{value} is not a finite number from 0 on")
    return values


def new_file(text: str) -> Path:
    """A file that can be written, in a folder that exists."""
    path = Path(text)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is no file that can be written in a folder that exists")
    return path


def text_file(text: str) -> Path:
    """A file that exists."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file")
    return path
