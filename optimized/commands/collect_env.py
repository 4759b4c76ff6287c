"""`counterpoint collect-env`: what a bug report should say about the machine and the installation.

Knows where to look; changes nothing and contacts nobody.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from optimized import platforms
from optimized.cli import EXIT_OK
from optimized.environ import PREFIX

PACKAGES = (
    "counterpoint",
    "torch",
    "numpy",
    "tokenizers",
    "tqdm",
    "huggingface_hub",
    "safetensors",
    "tilelang",
    "triton",
    "xgrammar",
)
_GIB = 2**30


def run(options: argparse.Namespace) -> int:
    """Prints the report."""
    report = collect()
    if options.json:
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return EXIT_OK
    width = max(map(len, report))
    for name, value in report.items():
        sys.stdout.write(f"{name.ljust(width)}  {value}\n")
    return EXIT_OK


def collect() -> dict[str, str]:
    """Name -> value, in the order in which they are printed."""
    report = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "processor": processor(),
        "compiler": _first_line("c++", "--version"),
        "C++ core": _core(),
    }
    report.update((name, _version(name)) for name in PACKAGES)
    for device in platforms.devices():
        memory = "" if device.memory_bytes is None else f", {device.memory_bytes / _GIB:.1f} GiB"
        usable = "" if device.usable else " (not supported yet)"
        report[f"device {device.name}"] = f"{device.description}{memory}{usable}"
    for name in sorted(os.environ):
        if name.startswith(PREFIX) or name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE"):
            report[name] = os.environ[name]
    return report


def processor() -> str:
    """The CPU's model, from the kernel where it says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _core() -> str:
    spec = importlib.util.find_spec("optimized._core")
    return "not built" if spec is None or spec.origin is None else Path(spec.origin).name


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "not found"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return (done.stdout.splitlines() or ["unknown"])[0]
