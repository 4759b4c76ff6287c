"""What every test shares: seeds that derive from the test's own name, Ctrl-C, the rule for tests that need a device.

Knows nothing about what is tested.
"""

from __future__ import annotations

import os
import signal
import zlib

import numpy as np
import pytest

# Parallel test processes share the cores: with as many compute threads as cores each, they wait for each other.
# Set before torch is imported; no result depends on it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores Ctrl-C for what it runs in the background, and tests send it to themselves and to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed made from the test's own name: it is the same alone, in any order, and on any machine."""
    return zlib.crc32(request.node.name.encode())


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """NumPy's generator on `seed`."""
    return np.random.default_rng(seed)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where torch sees no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
