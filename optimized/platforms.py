"""Which devices this machine has, and which of them the engine can run on.

Knows device names and how to look for them; knows nothing about operations: their table lives in ops/.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from reference.spec.errors import ConfigError, UnsupportedError, nearest

AUTO = "auto"
SUPPORTED = ("cpu", "cuda")
PLANNED = ("ascend",)
_ASCEND_NODE = "/dev/davinci_manager"


@dataclass(frozen=True)
class Device:
    """One device of this machine. memory_bytes: in all, None when unknown. usable: the engine runs on it."""

    name: str
    description: str
    memory_bytes: int | None
    usable: bool


def resolve(device: str) -> str:
    """The device that the option `device` means.

    Args:
        device: "auto" (the CPU: no accelerator has kernels of its own yet), "cpu", "cuda" (the first one), "cuda:1", ….
    Raises:
        UnsupportedError: a device that no backend serves yet.
        ConfigError: not the name of a device, or torch sees no such device on this machine.
    """
    if device in (AUTO, "cpu"):
        return "cpu"
    if number := re.fullmatch(r"cuda(?::(0|[1-9][0-9]{0,3}))?", device):
        return _cuda(device, int(number[1] or 0))
    accepted = ", ".join((AUTO, *SUPPORTED))
    if device.partition(":")[0] in PLANNED:
        raise UnsupportedError(f"device: {device!r} is not supported yet; accepted: {accepted}")
    raise ConfigError(f"device: got {device!r}{nearest(device, [AUTO, *SUPPORTED, *PLANNED])}; accepted: {accepted}")


def _cuda(device: str, index: int) -> str:
    """The CUDA device of that number, which must be there."""
    import torch

    found = [AUTO, "cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if f"cuda:{index}" not in found:
        raise ConfigError(
            f"device: got {device!r}, but torch {torch.__version__} sees no such device here; "
            f"accepted: {', '.join(found)}"
        )
    return f"cuda:{index}"


def total_memory() -> int:
    """Main memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def devices() -> list[Device]:
    """The devices of this machine, CPU first. Imports torch, to ask it about CUDA."""
    found = [Device("cpu", f"{os.cpu_count()} logical cores", total_memory(), usable=True)]
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            text = f"{properties.name}, sm_{properties.major}{properties.minor}"
            found.append(Device(f"cuda:{index}", text, properties.total_memory, usable=True))
    if os.path.exists(_ASCEND_NODE):
        found.append(Device("ascend", f"{_ASCEND_NODE} exists", None, usable=False))
    return found
