"""What a figure must carry: date, commit, hardware, software and command. Knows nothing about what was measured."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from optimized import platforms
from optimized.commands import collect_env

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """The short commit id, with `+changes` if tracked files differ from it; `unknown` outside a repository."""
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+changes" if changed else "")


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def processor() -> str:
    """The CPU's model name and the number of cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{collect_env.processor()}, {cores} cores"


def device_name(device: str) -> str:
    """What the device that an option means is called; "cpu" for the CPU.

    Raises:
        ConfigError: torch sees no such device here.
    """
    import torch

    resolved = platforms.resolve(device)
    return resolved if resolved == "cpu" else torch.cuda.get_device_name(resolved)


def describe(module: str, arguments: list[str], device: str, threads: int) -> dict[str, str]:
    """Where a figure comes from, as lines of name and value.

    Args:
        module: what was run with `python -m`.
        device: the accelerator's name, or "cpu".
        threads: torch's compute threads.
    """
    import torch

    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "hardware": processor() if device == "cpu" else f"{device}; {processor()}",
        "software": f"Python {platform.python_version()}, torch {torch.__version__}, {threads} threads, {sys.platform}",
        "command": shlex.join(["python", "-m", module, *arguments]),
    }
