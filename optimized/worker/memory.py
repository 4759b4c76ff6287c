"""How many pages fit: bytes of weights, slots and pages against what the machine has.

Knows sizes; allocates nothing.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from optimized.model.caches import CacheGeometry, page_bytes, slot_bytes
from reference.spec.config import ModelConfig
from reference.spec.errors import ConfigError

_log = logging.getLogger(__name__)


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


def plan_pages(
    config: ModelConfig, geometry: CacheGeometry, sequences: int, max_model_len: int, budget: int, asked: int | None
) -> int:
    """Pages of the pool, page 0 included.

    Args:
        geometry: its num_pages is not read.
        sequences: how many run at a time. budget: bytes for slots and pages. asked: the user's choice, or None for
            as many as all sequences need at full length, within the budget.
    Raises:
        ConfigError: the budget does not hold them; names the numbers.
    """
    slots = geometry.num_slots * slot_bytes(config, geometry)
    page = page_bytes(config, geometry.page_size)
    fitting = (budget - slots) // page if page else 2**31 - 1
    per_sequence = -(-(max_model_len + geometry.backtrack) // geometry.page_size)
    wanted = 1 + sequences * per_sequence if asked is None else asked
    least = 2 if asked is None else asked
    if fitting < least:
        raise ConfigError(
            f"num_pages: {least} pages of {page} bytes and {geometry.num_slots} state slots of "
            f"{slot_bytes(config, geometry)} bytes need more than the {budget} bytes that gpu_memory_utilization leaves"
        )
    return min(wanted, fitting)
