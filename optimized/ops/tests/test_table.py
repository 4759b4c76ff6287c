"""The operation table: what is registered, and what happens when nothing is."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch

from optimized import ops
from optimized.ops import registry
from optimized.ops.linear import fp8_linear
from optimized.ops.linear_weight import prepare_fp8_weight
from optimized.ops.rms_norm import rms_norm
from reference.spec.errors import KernelUnavailableError

pytestmark = pytest.mark.ci


def test_every_operation_has_a_row_invariant_cpu_implementation() -> None:
    rows = [row for row in ops.table() if row.backend == "cpu"]
    assert rows
    assert [row.op for row in rows if row.state != "measured" or not row.row_invariant] == []


def test_every_operation_has_one_row_a_backend() -> None:
    cells = [(row.op, row.backend) for row in ops.table()]
    assert len(cells) == len(set(cells))
    assert len(cells) == len({op for op, _ in cells}) * len(ops.BACKENDS)


def test_a_fresh_process_prints_every_operation() -> None:
    run = subprocess.run([sys.executable, "-m", "optimized", "ops"], capture_output=True, text=True, check=True)
    printed = {line.split()[0] for line in run.stdout.splitlines()[1:]}
    assert printed == {op for op, _ in registry.implementations()}


def public_functions() -> dict[str, Callable[..., Any]]:
    """Every function that a file of optimized.ops defines, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for module in pkgutil.iter_modules(ops.__path__, "optimized.ops."):
        if not module.ispkg:
            members = vars(importlib.import_module(module.name))
            found |= {name: one for name, one in members.items() if getattr(one, "__module__", "") == module.name}
    return found


def test_public_operations_and_implementations_have_the_same_names_and_arguments() -> None:
    public = public_functions()
    for name in {row.op for row in ops.table()}:
        for backend in ops.BACKENDS:
            if (name, backend) in registry.implementations():
                implementation = registry.implementations()[name, backend].function
                assert implementation.__name__ == name
                assert list(signature(implementation).parameters) == list(signature(public[name]).parameters)


def test_a_missing_kernel_is_named_with_what_would_provide_it() -> None:
    x = torch.empty(2, 8, dtype=torch.bfloat16, device="meta")
    with pytest.raises(KernelUnavailableError, match=r"rms_norm .* backend meta"):
        rms_norm(x, torch.empty(8, device="meta"), 1e-20)
    missing = [row for row in ops.table() if row.state == "missing"]
    assert all(row.provider for row in missing)


def test_a_broken_shape_law_names_operation_and_shapes() -> None:
    weight = prepare_fp8_weight(torch.zeros(32, 64, dtype=torch.uint8), torch.zeros(1, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"fp8_linear: needs .* got \[3, 32\] bfloat16"):
        fp8_linear(torch.zeros(3, 32, dtype=torch.bfloat16), weight)
