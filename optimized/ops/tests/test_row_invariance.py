"""The row law: a row's bits are the same alone and among any number of others, for every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from optimized.ops.compress_kv import compress_kv
from optimized.ops.engram import engram_gate
from optimized.ops.experts import combine_experts, route_experts, swiglu
from optimized.ops.grouped_linear import grouped_linear
from optimized.ops.hyper_connection import hyper_connection_collapse, hyper_connection_expand, hyper_connection_mix
from optimized.ops.index_scores import index_scores
from optimized.ops.linear import bf16_linear, block_diagonal_linear, fp8_linear, fp32_linear
from optimized.ops.linear_weight import prepare_dense_weight, prepare_fp4_weight, prepare_fp8_weight
from optimized.ops.packed import Packed
from optimized.ops.quantize import quantize_fp8, quantize_mxfp4, quantize_nvfp4
from optimized.ops.rms_norm import rms_norm
from optimized.ops.rope import rope
from optimized.ops.sample import SamplingRows, draw, log_probabilities, process_logits
from optimized.ops.sparse_attention import sparse_attention
from optimized.ops.tests.generators import ROW_COUNTS, bf16, codes, e4m3_codes, normal
from optimized.ops.verification_lengths import survivals
from optimized.ops.verify import judge_drafts

pytestmark = pytest.mark.ci

MOST = max(ROW_COUNTS)
Rows = Callable[[slice], "torch.Tensor | tuple[torch.Tensor, ...]"]


def linears(rng: np.random.Generator) -> Rows:
    x, values = bf16(rng, MOST, 96), bf16(rng, 40, 96)
    fp8 = prepare_fp8_weight(e4m3_codes(rng, 40, 96), codes(rng, 2, 3, low=118, high=125))
    dense, grouped = prepare_dense_weight(values), prepare_dense_weight(bf16(rng, 3, 24, 32))
    return lambda rows: (
        fp8_linear(x[rows], fp8),
        bf16_linear(x[rows], dense),
        fp32_linear(x[rows], dense),
        block_diagonal_linear(x[rows].view(-1, 3, 32), grouped),
    )


def experts(rng: np.random.Generator) -> Rows:
    x = bf16(rng, MOST, 64)
    group = torch.from_numpy(np.sort(rng.integers(0, 6, size=MOST)))
    fp4 = prepare_fp4_weight(codes(rng, 6, 48, 32), codes(rng, 6, 48, 2, low=118, high=125))
    dense, logits, bias = prepare_dense_weight(bf16(rng, 6, 48, 64)), normal(rng, MOST, 16), normal(rng, 16)
    outputs, weight = bf16(rng, MOST, 3, 64), normal(rng, MOST)
    return lambda rows: (
        grouped_linear(x[rows], group[rows], fp4),
        grouped_linear(x[rows], group[rows], dense),
        *route_experts(logits[rows], bias, 3, True, 1.5),
        swiglu(x[rows], 0.5, weight[rows]),
        combine_experts(outputs[rows], x[rows]),
    )


def streams(rng: np.random.Generator) -> Rows:
    h, y, memory = bf16(rng, MOST, 4, 96), bf16(rng, MOST, 96), bf16(rng, MOST, 5 * 96)
    fn, scale, base, gate = (
        prepare_dense_weight(normal(rng, 24, 384)),
        normal(rng, 24),
        normal(rng, 24),
        normal(rng, 4, 96),
    )
    norm = normal(rng, 96)

    def run(rows: slice) -> tuple[torch.Tensor, ...]:
        pre, post, comb = hyper_connection_mix(h[rows], fn, scale, base, 1e-20, 1e-6, 20)
        collapsed = hyper_connection_collapse(h[rows], pre)
        expanded = hyper_connection_expand(y[rows], h[rows], post, comb)
        return (
            pre,
            post,
            comb,
            collapsed,
            expanded,
            engram_gate(h[rows], memory[rows], gate, 1e-20),
            rms_norm(collapsed, norm, 1e-20),
        )

    return run


def caches(rng: np.random.Generator) -> Rows:
    x, cos, sin = bf16(rng, MOST, 4, 64), normal(rng, MOST, 16), normal(rng, MOST, 16)
    gated, state = normal(rng, MOST, 2, 64), normal(rng, 20, 2, 64)
    place = torch.from_numpy(rng.integers(0, 20, size=(MOST, 2)))
    return lambda rows: (
        rope(x[rows], cos[rows], sin[rows]),
        *quantize_fp8(x[rows]),
        *quantize_mxfp4(x[rows]),
        *quantize_nvfp4(x[rows]),
        compress_kv(gated[rows], state, place[rows] + len(gated[rows])),
    )


def attention(rng: np.random.Generator) -> Rows:
    q, sink = bf16(rng, MOST, 4, 64), normal(rng, 4)
    ring = Packed(*quantize_fp8(bf16(rng, 50, 64)))
    entries = Packed(*quantize_nvfp4(bf16(rng, 90, 64)))
    own = Packed(*quantize_fp8(bf16(rng, 0, 64)))
    window = torch.from_numpy(rng.integers(-1, 50, size=(MOST, 24)))
    chosen = torch.from_numpy(rng.integers(-1, 90, size=(MOST, 12)))
    return lambda rows: sparse_attention(q[rows], own, ring, window[rows], entries, chosen[rows], sink, 0.125)


def index(rng: np.random.Generator) -> Rows:
    queries = Packed(*quantize_mxfp4(bf16(rng, MOST, 4, 64)))
    keys = Packed(*quantize_mxfp4(bf16(rng, 9, 16, 64)))
    weights, table = bf16(rng, MOST, 4), torch.tensor([[3, 5, 8]])
    visible = torch.from_numpy(rng.integers(0, 49, size=MOST))

    def run(rows: slice) -> torch.Tensor:
        count = len(visible[rows])
        query = Packed(queries.codes[rows], queries.scales[rows])
        request = torch.zeros(count, dtype=torch.int64)
        return index_scores(query, weights[rows], 0.11, keys, table, request, [0, count], visible[rows])

    return run


def sampling(rng: np.random.Generator) -> Rows:
    logits = normal(rng, MOST, 131, scale=3.0)
    parameters = SamplingRows(
        torch.from_numpy(rng.choice([0.0, 0.7, 1.3], size=MOST)),
        torch.from_numpy(rng.integers(-1, 40, size=MOST)),
        torch.from_numpy(rng.choice([0.3, 0.9, 1.0], size=MOST)),
        torch.from_numpy(rng.choice([-np.inf, -3.0], size=MOST)),
        torch.from_numpy(rng.integers(-(2**63), 2**63, size=MOST)),
        torch.from_numpy(rng.integers(0, 10**6, size=MOST)),
        torch.zeros(MOST, dtype=torch.int64),
        torch.from_numpy(rng.integers(0, 4, size=MOST)),
    )
    columns = [one for one in vars(parameters).values() if isinstance(one, torch.Tensor)]

    def run(rows: slice) -> tuple[torch.Tensor, ...]:
        some: list[Any] = [one[rows] for one in columns]
        chosen = SamplingRows(*some)
        processed = process_logits(logits[rows], chosen)
        return processed, draw(processed, chosen), log_probabilities(logits[rows])

    return run


def verification(rng: np.random.Generator) -> Rows:
    target, proposal = normal(rng, MOST, 131, scale=2.0), normal(rng, MOST, 131, scale=2.0)
    drafts = torch.from_numpy(rng.integers(0, 131, size=MOST))
    words = torch.from_numpy(rng.integers(0, 2**32, size=MOST))
    confidence, temperatures = normal(rng, MOST, 5, scale=3.0), torch.from_numpy(rng.uniform(0.5, 2, size=5))

    def run(rows: slice) -> tuple[torch.Tensor, ...]:
        kept, residual = judge_drafts(target[rows], proposal[rows], drafts[rows], words[rows], 0.99)
        return kept, residual, survivals(confidence[rows], temperatures)

    return run


@pytest.mark.parametrize("case", [linears, experts, streams, caches, attention, index, sampling, verification])
def test_a_row_alone_equals_the_row_in_a_batch(case: Callable[[np.random.Generator], Rows], rng) -> None:
    run = case(rng)
    alone = [run(slice(row, row + 1)) for row in range(MOST)]
    parts = [row if isinstance(row, tuple) else (row,) for row in alone]
    expected = [torch.cat(part) for part in zip(*parts, strict=True)]
    for count in ROW_COUNTS:
        found = run(slice(0, count))
        for one, wanted in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
            assert torch.equal(one, wanted[:count]), f"{count} rows"


def test_empty_batches_have_empty_results(rng: np.random.Generator) -> None:
    for case in (linears, experts, streams, caches, attention, index):
        found = case(rng)(slice(0, 0))
        assert all(len(one) == 0 for one in (found if isinstance(found, tuple) else (found,)))
