"""The bundled checkpoint gives the same tokens on a CUDA device and on the CPU, and logprobs under their tolerance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equivalence.compare import compare
from equivalence.tolerances import tolerance
from optimized.tests.test_cuda import generate, work

pytestmark = pytest.mark.gpu


def numbers(logprobs: list[dict[int, Any]]) -> tuple[list[list[tuple[int, int]]], torch.Tensor]:
    """Ids and ranks that a request reports, and their logprobs."""
    entries = [[(token, one.rank) for token, one in step.items()] for step in logprobs]
    return entries, torch.tensor([one.logprob for step in logprobs for one in step.values()], dtype=torch.float64)


@pytest.mark.parametrize("drafting", [{}, {"nextn": 5}, {"nextn": 5, "verification": "ratio"}])
def test_a_cuda_device_and_the_cpu_generate_the_same(drafting: dict[str, Any]) -> None:
    prompts, params = (some[:10] for some in work(60))
    ours, theirs = (generate(prompts, params, device=device, **drafting)[0] for device in ("cuda", "cpu"))
    for (tokens, reports), (wanted_tokens, wanted_reports) in zip(ours, theirs, strict=True):
        assert tokens == wanted_tokens
        (entries, found), (wanted_entries, wanted) = numbers(reports), numbers(wanted_reports)
        assert entries == wanted_entries
        measured = compare(found, wanted, tolerance("cuda.logprobs"))
        assert measured.passed, measured.first
