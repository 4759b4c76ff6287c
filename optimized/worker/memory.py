"""The memory plan: bytes of weights, pages, slots and input buffers against what the machine has, before any of it is
allocated.

Knows sizes; allocates nothing.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from optimized.model.caches import CacheGeometry, page_bytes, slot_bytes
from reference.spec.config import ModelConfig
from reference.spec.errors import ConfigError

# Bytes; of torch's caching allocator.
_ALLOCATION_GRANULE = 512
_LARGEST_LOSS = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryPlan:
    """What a worker keeps for its life, in bytes.

    weights: all of them, as the backend's operations read them. scratch: the input buffers, the logits of captured
    steps, and what the drafts of the ratio rule were drawn from. overhead: what an accelerator's libraries and
    allocator take. page, slot: one page, one state slot. num_pages, num_slots: page 0 and slot 0 included.
    """

    weights: int
    scratch: int
    overhead: int
    page: int
    num_pages: int
    slot: int
    num_slots: int

    @property
    def total(self) -> int:
        """Everything."""
        return self.weights + self.scratch + self.overhead + self.page * self.num_pages + self.slot * self.num_slots

    def describe(self) -> str:
        """One line with every number."""
        return (
            f"{self.total / 2**20:.1f} MiB: weights {self.weights / 2**20:.1f}, {self.num_pages} pages of {self.page} "
            f"bytes {self.page * self.num_pages / 2**20:.1f}, {self.num_slots} state slots of {self.slot} bytes "
            f"{self.slot * self.num_slots / 2**20:.1f}, step buffers {self.scratch / 2**20:.1f}, "
            f"device overhead {self.overhead / 2**20:.1f}"
        )


def available_bytes(device: torch.device) -> int:
    """Memory that can be had now: of the accelerator, or of the machine for the CPU (page cache included)."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        _log.debug("no /proc/meminfo; counting free pages only")
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_overhead(device: torch.device, capture_stream: torch.cuda.Stream | None, weights: int, tensors: int) -> int:
    """Bytes that an accelerator takes beside what is asked for, 0 on the CPU: the workspace that its matrix library
    keeps for each stream, seen by making it, and what the allocator loses by rounding up.

    The loss is an estimate: a tensor may get a block that is up to 1 MiB too large; for weights of some MiB each, 3 %
    were seen.

    Args:
        capture_stream: matrices will be multiplied on it, beside the current stream. weights: bytes. tensors: at least
            as many as will be allocated for good.
    """
    if device.type != "cuda":
        return 0
    before = torch.cuda.memory_allocated(device)
    for stream in (None, capture_stream):
        with torch.cuda.stream(stream):  # None: the current one
            one = torch.ones(1, 8, 8, dtype=torch.float64, device=device)
            torch.bmm(one, one)
            del one
    torch.cuda.synchronize(device)
    workspaces = torch.cuda.memory_allocated(device) - before
    return workspaces + tensors * _ALLOCATION_GRANULE + min(weights // 24, tensors * _LARGEST_LOSS)


def sequence_pages(max_model_len: int, geometry: CacheGeometry) -> int:
    """Pages of a sequence of full length, with the room of one more step."""
    return -(-(max_model_len + geometry.backtrack) // geometry.page_size)


def plan_memory(
    config: ModelConfig,
    geometry: CacheGeometry,
    max_model_len: int,
    *,
    weights: int,
    scratch: int,
    overhead: int = 0,
    budget: int,
    asked: int | None,
) -> MemoryPlan:
    """The plan with as many pages as asked for, or as all sequences need at full length, within the budget.

    Args:
        geometry: its num_pages is not read; it has a slot for each sequence, and slot 0.
        weights, scratch, overhead: bytes. budget: bytes for everything. asked: the user's number of pages, or None.
    Raises:
        ConfigError: the budget does not hold it; names the numbers.
    """
    slot, page, num_slots = slot_bytes(config, geometry), page_bytes(config, geometry.page_size), geometry.num_slots
    left = budget - weights - scratch - overhead - num_slots * slot
    fitting = left // page if page else (2**31 - 1 if left >= 0 else -1)
    wanted = 1 + (num_slots - 1) * sequence_pages(max_model_len, geometry) if asked is None else asked
    least = 2 if asked is None else asked
    if fitting < least:
        raise ConfigError(
            f"num_pages: {least} pages of {page} bytes, {num_slots} state slots of {slot} bytes, weights of {weights} "
            f"bytes, step buffers of {scratch} bytes and {overhead} bytes of the device's own need more than the "
            f"{budget} bytes that gpu_memory_utilization leaves"
        )
    return MemoryPlan(weights, scratch, overhead, page, min(wanted, fitting), slot, num_slots)
