"""The laws and the definitions of the operations, on a CUDA device, and the CPU's results beside them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from optimized.ops.portable import tables
from optimized.ops.tests import test_definitions as definitions
from optimized.ops.tests import test_row_invariance as row_law
from optimized.ops.tests import test_selection_ties as ties
from optimized.worker.transfer import no_waits

pytestmark = pytest.mark.gpu

CASES = (row_law.linears, row_law.experts, row_law.streams, row_law.caches, row_law.attention, row_law.index)
TESTS = [
    test
    for module in (definitions, ties)
    for name, test in vars(module).items()
    if name.startswith("test_") and set(inspect.signature(test).parameters) <= {"rng"}
]
#: Of float64 results; sine, exponential and root of the two devices may differ in their last bits.
RELATIVE = 1e-12


@contextmanager
def everything_on_cuda() -> Iterator[None]:
    """Inside, tensors that are made are made on the device, also those from NumPy's arrays."""
    for table in (tables.e4m3_values, tables.e2m1_pairs, tables.ue8m0_values, tables.e2m1_bounds):
        table(torch.device("cuda:0"))  # made on the host
    with pytest.MonkeyPatch.context() as patch, torch.device("cuda"):
        original = torch.from_numpy
        patch.setattr(torch, "from_numpy", lambda values: original(values).cuda())
        yield


@pytest.mark.parametrize("case", [*CASES, row_law.sampling])
def test_a_row_alone_equals_the_row_in_a_batch(case: Callable[..., Any], rng: np.random.Generator) -> None:
    with everything_on_cuda():
        row_law.test_a_row_alone_equals_the_row_in_a_batch(case, rng)


@pytest.mark.parametrize("test", TESTS)
def test_definitions_hold(test: Callable[..., None], rng: np.random.Generator) -> None:
    with everything_on_cuda():
        test(**({"rng": rng} if inspect.signature(test).parameters else {}))


@pytest.mark.parametrize("case", [*CASES, row_law.sampling])
def test_results_are_those_of_the_cpu_and_nothing_waits(case: Callable[..., Any], seed: int) -> None:
    rows = slice(0, row_law.MOST)
    wanted = case(np.random.default_rng(seed))(rows)
    with everything_on_cuda():
        run = case(np.random.default_rng(seed))
        with no_waits():
            found = run(rows)
    both = zip(*(one if isinstance(one, tuple) else (one,) for one in (found, wanted)), strict=True)
    for ours, theirs in both:
        if theirs.dtype == torch.float64:
            torch.testing.assert_close(ours.cpu(), theirs, rtol=RELATIVE, atol=RELATIVE)
        else:
            assert torch.equal(ours.cpu(), theirs)
