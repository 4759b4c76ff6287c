"""The laws and the definitions of the operations, on a CUDA device, and the CPU's results beside them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from optimized.ops.adjust_logits import unpack_bits
from optimized.ops.portable import tables
from optimized.ops.tests import test_definitions as definitions
from optimized.ops.tests import test_formats as formats
from optimized.ops.tests import test_row_invariance as row_law
from optimized.ops.tests import test_selection_ties as ties
from optimized.ops.verification_lengths import select_lengths
from optimized.worker.transfer import no_waits

pytestmark = pytest.mark.gpu

CASES = [
    getattr(row_law, name)
    for name in ("linears", "experts", "streams", "caches", "attention", "index", "sampling", "verification")
]
TESTS = [
    test
    for module in (definitions, formats, ties)
    for name, test in vars(module).items()
    if name.startswith("test_") and set(inspect.signature(test).parameters) <= {"rng"}
]
#: Of float64 results, relative to their size and to 1: sine, exponential and root of two devices differ in their last
#: bits, and residuals are logarithms of differences.
CLOSE = 1e-9


def splits(rng: np.random.Generator) -> row_law.Rows:
    """Operations that are not bound to rows of their own, or only unpack them."""
    words = torch.from_numpy(rng.integers(-(2**31), 2**31, size=(row_law.MOST, 5), dtype=np.int32))
    survival = torch.from_numpy(rng.uniform(size=(row_law.MOST, 5)).cumprod(axis=1).astype(np.float32))
    most = torch.from_numpy(rng.integers(0, 6, size=row_law.MOST))
    return lambda rows: (unpack_bits(words[rows], 131), select_lengths(survival[rows], most[rows], 300))


@contextmanager
def everything_on_cuda() -> Iterator[None]:
    """Inside, tensors that are made are made on the device, also those from NumPy's arrays."""
    for table in (tables.e4m3_values, tables.e2m1_pairs, tables.ue8m0_values, tables.e2m1_bounds):
        for device in ("cpu", "cuda:0"):
            table(torch.device(device))  # made on the host, and kept
    with pytest.MonkeyPatch.context() as patch, torch.device("cuda"):
        original = torch.from_numpy
        patch.setattr(torch, "from_numpy", lambda values: original(values).cuda())
        yield


@pytest.mark.parametrize("case", CASES)
def test_a_row_alone_equals_the_row_in_a_batch(case: Callable[..., Any], rng: np.random.Generator) -> None:
    with everything_on_cuda():
        row_law.test_a_row_alone_equals_the_row_in_a_batch(case, rng)


@pytest.mark.parametrize("test", TESTS)
def test_definitions_hold(test: Callable[..., None], rng: np.random.Generator) -> None:
    with everything_on_cuda():
        test(**({"rng": rng} if inspect.signature(test).parameters else {}))


@pytest.mark.parametrize("case", [*CASES, splits])
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
            torch.testing.assert_close(ours.cpu(), theirs, rtol=CLOSE, atol=CLOSE)
        else:
            assert torch.equal(ours.cpu(), theirs)
