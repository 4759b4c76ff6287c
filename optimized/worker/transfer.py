"""Numbers on their way between host and device, so that neither waits for the other.

To the device they go through page-locked staging memory: the copy is queued behind what the device has to do, and
torch's allocator hands a staging block out again only after the copy that reads it is done. To the host they go into
page-locked memory with an event behind them; waiting for that event is the only wait. On the CPU both are plain copies
or none. Knows arrays and devices; knows nothing about what the numbers mean.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray

Record = TypeVar("Record", bound=Any)


def upload(values: ArrayLike, device: torch.device, dtype: DTypeLike = np.int64) -> torch.Tensor:
    """A new tensor on the device with the values, which may change once this returns. values: any shape."""
    host = torch.from_numpy(np.array(values, dtype=dtype))
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def moved(record: Record, device: torch.device) -> Record:
    """A dataclass with the tensors of its fields, and of dataclasses among them, on the device; the rest as it is.

    record: its tensors are in the host's memory and do not change any more.
    """
    if device.type == "cpu":
        return record
    changes: dict[str, Any] = {}
    for name, value in vars(record).items():
        if isinstance(value, torch.Tensor):
            changes[name] = value.pin_memory().to(device, non_blocking=True)
        elif is_dataclass(value):
            changes[name] = moved(value, device)
    return replace(record, **changes)


def write(target: torch.Tensor, values: NDArray[np.generic]) -> torch.Tensor:
    """Copies values into a tensor of their shape and dtype, which is returned."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    if target.device.type != "cpu":
        host = host.pin_memory()
    return target.copy_(host, non_blocking=True)


class Download:
    """Tensors on their way to the host; what the device has queued for them so far comes first."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        """
        Args:
            tensors: on one device, any shapes and dtypes; on the CPU they are handed on as they are.
        """
        self._host = tensors
        self._arrived: torch.cuda.Event | None = None
        if tensors and tensors[0].device.type == "cuda":
            self._host = tuple(torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for one in tensors)
            for host, one in zip(self._host, tensors, strict=True):
                host.copy_(one, non_blocking=True)
            self._arrived = torch.cuda.Event(blocking=True)  # the host sleeps while it waits
            self._arrived.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The tensors on the host, in their order, once all are there."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host


@contextmanager
def no_waits() -> Iterator[None]:
    """Inside, what makes the host wait for a CUDA device raises RuntimeError; events (`Download.wait`) are exempt."""
    with _sync_debug_mode("error"):
        yield


@contextmanager
def waits_allowed() -> Iterator[None]:
    """Inside `no_waits`: waits are allowed again."""
    with _sync_debug_mode("default"):
        yield


@functools.cache
def _announce_nothing() -> None:
    """torch warns, once, that the mode below is a prototype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("warn")
    torch.cuda.set_sync_debug_mode("default")


@contextmanager
def _sync_debug_mode(mode: str) -> Iterator[None]:
    _announce_nothing()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
