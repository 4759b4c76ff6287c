"""The table of operations: which backend has which implementation of each, from whom, and how well it is known.

It knows names, backends and functions; it knows nothing about what an operation computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from reference.spec.errors import KernelUnavailableError

BACKENDS = ("cpu", "cuda", "ascend")
MEASURED, COMPILES_ONLY, UNTESTED, MISSING = "measured", "compiles only", "untested", "missing"

_BACKEND_OF_DEVICE = {"cpu": "cpu", "cuda": "cuda", "npu": "ascend"}

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Implementation:
    """One backend's code for one operation.

    provider: where it comes from ("portable", a kernel library, "tilelang").
    state: MEASURED (its tests ran there), COMPILES_ONLY or UNTESTED (nothing is known).
    row_invariant: a row's bits depend on that row and on the model's dimensions only.
    """

    function: Callable[..., Any]
    provider: str
    state: str
    row_invariant: bool


@dataclass(frozen=True)
class TableRow:
    """One cell of the operation table."""

    op: str
    backend: str
    provider: str
    state: str
    row_invariant: bool


_wanted: dict[str, dict[str, str]] = {}
_implementations: dict[tuple[str, str], Implementation] = {}


class Operation:
    """A named operation that dispatches on the device of its first tensor.

    Args:
        name: the operation's name, that of its file.
        cuda, ascend: what would provide it there, for the error message and the table.
    """

    def __init__(self, name: str, *, cuda: str = "a TileLang kernel", ascend: str = "a TileLang kernel") -> None:
        self.name = name
        _wanted[name] = {"cpu": "ops/portable", "cuda": cuda, "ascend": ascend}

    def on(self, tensor: torch.Tensor) -> Callable[..., Any]:
        """The implementation for the device of ``tensor``.

        Raises:
            KernelUnavailableError: names the operation, the backend and what would provide it.
        """
        backend = _BACKEND_OF_DEVICE.get(tensor.device.type, tensor.device.type)
        found = _implementations.get((self.name, backend))
        if found is None:
            provider = _wanted[self.name].get(backend, "nothing that this project knows")
            raise KernelUnavailableError(
                f"operation {self.name} has no implementation on backend {backend}; {provider} would provide it"
            )
        return found.function


def register(
    op: str, *, backend: str = "cpu", provider: str = "portable", state: str = MEASURED, row_invariant: bool = True
) -> Callable[[Function], Function]:
    """Decorator: this function implements ``op`` on ``backend``. A second registration replaces the first."""

    def keep(function: Function) -> Function:
        _implementations[op, backend] = Implementation(function, provider, state, row_invariant)
        return function

    return keep


def implementations() -> Mapping[tuple[str, str], Implementation]:
    """What is registered, by (operation, backend). Read-only."""
    return MappingProxyType(_implementations)


def table() -> list[TableRow]:
    """Every operation on every backend, in alphabetical order; what is missing names its would-be provider."""
    rows = []
    for op in sorted(_wanted):
        for backend in BACKENDS:
            found = _implementations.get((op, backend))
            if found is None:
                rows.append(TableRow(op, backend, _wanted[op][backend], MISSING, False))
            else:
                rows.append(TableRow(op, backend, found.provider, found.state, found.row_invariant))
    return rows


def require(holds: bool, op: str, law: str, *tensors: torch.Tensor) -> None:
    """Host-side check of a shape law.

    Raises:
        ValueError: names the operation, the law and every tensor's shape and dtype.
    """
    if not holds:
        got = ", ".join(f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)
        raise ValueError(f"{op}: needs {law}; got {got}")
