"""Operations against slow statements of their definition, one term of the definition a test."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from optimized.ops.compress_kv import compress_kv
from optimized.ops.engram import engram_gate, engram_hash, engram_lookup
from optimized.ops.experts import combine_experts, swiglu
from optimized.ops.grouped_linear import grouped_linear
from optimized.ops.hyper_connection import hyper_connection_expand, hyper_connection_mix
from optimized.ops.index_scores import index_scores
from optimized.ops.linear import bf16_linear, fp8_linear
from optimized.ops.linear_weight import prepare_dense_weight, prepare_fp4_weight, prepare_fp8_weight
from optimized.ops.packed import Packed
from optimized.ops.portable import tables
from optimized.ops.quantize import quantize_fp8, quantize_mxfp4, quantize_nvfp4
from optimized.ops.rope import rope
from optimized.ops.sparse_attention import sparse_attention
from optimized.ops.tests.generators import bf16, codes, e4m3_codes, nearest_bf16, normal

pytestmark = pytest.mark.ci


def rounded(values: list[float]) -> list[float]:
    return [nearest_bf16(value) for value in values]


def test_fp8_linear_is_the_product_of_dequantised_operands_rounded_once(rng: np.random.Generator) -> None:
    x, weight, scale = bf16(rng, 3, 64), e4m3_codes(rng, 40, 64), codes(rng, 2, 2, low=118, high=125)
    inputs = tables.dequantize_fp8(*quantize_fp8(x)).tolist()
    values = tables.e4m3_values(x.device)[weight.int()].tolist()
    found = fp8_linear(x, prepare_fp8_weight(weight, scale)).tolist()
    for row, outputs in zip(inputs, found, strict=True):
        for n, output in enumerate(outputs):
            terms = [row[k] * values[n][k] * 2.0 ** (int(scale[n // 32, k // 32]) - 127) for k in range(64)]
            assert output == nearest_bf16(math.fsum(terms))


def test_plain_linear_does_not_quantise_its_input(rng: np.random.Generator) -> None:
    x, weight = bf16(rng, 3, 64), bf16(rng, 5, 64)
    expected = [
        [math.fsum(map(math.prod, zip(row, column, strict=True))) for column in weight.tolist()] for row in x.tolist()
    ]
    assert bf16_linear(x, prepare_dense_weight(weight)).tolist() == [rounded(row) for row in expected]


def test_grouped_rows_go_through_their_own_matrix(rng: np.random.Generator) -> None:
    x, packed, scale = bf16(rng, 30, 64), codes(rng, 5, 24, 32), codes(rng, 5, 24, 2, low=118, high=125)
    group = torch.from_numpy(np.sort(rng.choice([0, 1, 4], size=30)))
    found = grouped_linear(x, group, prepare_fp4_weight(packed, scale))
    weight = tables.dequantize_mxfp4(packed, scale)
    inputs = tables.dequantize_fp8(*quantize_fp8(x))
    for row, index, output in zip(inputs, group.tolist(), found.tolist(), strict=True):
        terms = (row * weight[index]).tolist()
        assert output == [nearest_bf16(math.fsum(one)) for one in terms]


def test_rotation_turns_interleaved_pairs_of_the_last_channels(rng: np.random.Generator) -> None:
    x, angle = bf16(rng, 4, 2, 12), normal(rng, 4, 3)
    found = rope(x, angle.cos(), angle.sin())
    assert torch.equal(found[..., :6], x[..., :6])
    turned = torch.view_as_complex(x[..., 6:].double().unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angle), angle)[:, None]).flatten(-2)
    assert found[..., 6:].flatten().tolist() == rounded(turned.flatten().tolist())
    back = rope(found, angle.cos(), angle.sin(), inverse=True)
    assert torch.allclose(back.double(), x.double(), rtol=0.02, atol=0.02)


def test_mixes_are_almost_doubly_stochastic_and_end_on_columns(rng: np.random.Generator) -> None:
    fn = prepare_dense_weight(normal(rng, 24, 64, scale=0.3))
    pre, post, comb = hyper_connection_mix(bf16(rng, 9, 4, 16), fn, normal(rng, 24), normal(rng, 24), 1e-20, 1e-6, 20)
    assert float((comb.sum(dim=1) - 1).abs().max()) < 2e-6
    assert float((comb.sum(dim=2) - 1).abs().max()) < 1e-2
    assert bool(((pre > 1e-6) & (pre < 1 + 1e-5) & (post > 0) & (post < 2)).all())


def test_expansion_reads_comb_from_source_to_destination() -> None:
    h = torch.tensor([[[1.0], [2.0]]], dtype=torch.bfloat16)
    comb = torch.tensor([[[0.5, 0.25], [0.0, 1.0]]], dtype=torch.float64)
    post = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    found = hyper_connection_expand(torch.tensor([[8.0]], dtype=torch.bfloat16), h, post, comb)
    assert found.flatten().tolist() == [8 + 0.5, 16 + 0.25 + 2]


def test_hash_is_exact_integer_arithmetic(rng: np.random.Generator) -> None:
    history = torch.from_numpy(rng.integers(0, 99092, size=(20, 4)))
    multipliers = torch.tensor([76632096046245, 4839876093313, 35959672319349, 73987337458391])
    primes = torch.tensor([[16000057, 16000079], [16000189, 16000207], [16000339, 16000381]])
    offsets = torch.arange(6) * 1000
    found = engram_hash(history, multipliers, primes, offsets).tolist()
    for ids, row in zip(history.tolist(), found, strict=True):
        mixed, expected = ids[0] * int(multipliers[0]), []
        for gram in range(3):
            mixed ^= ids[gram + 1] * int(multipliers[gram + 1])
            expected += [mixed % int(prime) for prime in primes[gram]]
        assert row == [value + 1000 * column for column, value in enumerate(expected)]


def test_gate_adds_one_value_to_every_copy(rng: np.random.Generator) -> None:
    h, memory, weight = bf16(rng, 3, 2, 16), bf16(rng, 3, 48), normal(rng, 2, 16)
    found = engram_gate(h, memory, weight, 1e-20).tolist()
    for row, (stream, parts) in enumerate(zip(h.double(), memory.double().view(3, 3, 16), strict=True)):
        for copy in range(2):
            key, value = parts[copy], parts[2]
            norms = (float(stream[copy].square().mean()) * float(key.square().mean())) ** -0.5
            dot = float((stream[copy] * weight[copy] * key).sum()) * norms / 4
            gate = 1 / (1 + math.exp(-math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)))
            assert found[row][copy] == rounded((stream[copy] + gate * value).tolist())


def test_table_rows_lie_side_by_side(rng: np.random.Generator) -> None:
    table, scale = e4m3_codes(rng, 9, 32), codes(rng, 9, 1, low=120, high=130)
    found = engram_lookup(torch.tensor([[3, 8], [0, 3]]), table, scale)
    values = tables.dequantize_fp8(table, scale)
    assert torch.equal(found.double(), torch.stack((values[[3, 8]].flatten(), values[[0, 3]].flatten())))


def test_only_the_gate_is_clamped_from_above_only() -> None:
    gate_up = torch.tensor([[-20.0, 20.0, 1.0, 1.0, 20.0, -20.0]], dtype=torch.bfloat16)
    found = swiglu(gate_up, 10.0, torch.tensor([0.5], dtype=torch.float64))
    silu = [-20 / (1 + math.exp(20)), 10 / (1 + math.exp(-10)), 1 / (1 + math.exp(-1))]
    assert found[0].tolist() == rounded([0.5 * silu[0] * 1, 0.5 * silu[1] * 10, 0.5 * silu[2] * -10])


def test_shared_expert_joins_before_the_one_rounding() -> None:
    outputs = torch.tensor([[[256.0], [0.75]]], dtype=torch.bfloat16)
    assert combine_experts(outputs, torch.tensor([[0.75]], dtype=torch.bfloat16)).tolist() == [[258.0]]
    assert combine_experts(outputs, None).tolist() == [[256.0]]


def test_equal_gates_pool_to_the_mean_across_rows_and_state(rng: np.random.Generator) -> None:
    rows, state = normal(rng, 2, 2, 8), normal(rng, 3, 2, 8)
    rows[:, 1], state[:, 1] = 0.7, 0.7
    found = compress_kv(rows, state, torch.tensor([[4, 0], [0, 1]]))
    expected = torch.stack(((state[2, 0] + rows[0, 0]) / 2, (rows[0, 0] + rows[1, 0]) / 2))
    assert found.flatten().tolist() == rounded(expected.flatten().tolist())


def test_scores_round_dot_product_and_sum(rng: np.random.Generator) -> None:
    queries, keys = Packed(*quantize_mxfp4(bf16(rng, 2, 3, 32))), Packed(*quantize_mxfp4(bf16(rng, 4, 5, 32)))
    weights, visible = bf16(rng, 2, 3), torch.tensor([7, 10])
    table = torch.tensor([[3, 1]])
    found = index_scores(queries, weights, 0.3, keys, table, torch.zeros(2, dtype=torch.int64), [0, 2], visible)
    query, key = (
        tables.dequantize_mxfp4(*queries).tolist(),
        tables.dequantize_mxfp4(*keys)[[3, 1]].flatten(0, 1).tolist(),
    )
    for row in range(2):
        for entry in range(10):
            total = 0.0
            for head in range(3):
                dot = nearest_bf16(math.fsum(a * b for a, b in zip(query[row][head], key[entry], strict=True)))
                total += nearest_bf16(max(dot, 0.0) * nearest_bf16(float(weights[row, head]) * 0.3))
            expected = nearest_bf16(total) if entry < visible[row] else -math.inf
            assert float(found[row, entry]) == expected


def attention_case(rng: np.random.Generator, sink: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the operation gives for one row, its query [H, d] and the keys it sees [L, d]."""
    q = bf16(rng, 1, 4, 32)
    rows, ring = Packed(*quantize_fp8(bf16(rng, 1, 32))), Packed(*quantize_fp8(bf16(rng, 6, 32)))
    entries = Packed(*quantize_nvfp4(bf16(rng, 9, 32)))
    window, chosen = torch.tensor([[-1, 3, 5, 0]]), torch.tensor([[2, 7, 8, -1, -1]])
    found = sparse_attention(q, rows, ring, window, entries, chosen, torch.full((4,), sink), 32**-0.5)
    ring_keys, own = tables.dequantize_fp8(*ring), tables.dequantize_fp8(*rows)
    keys = torch.cat((ring_keys[[2, 4]], own[[0]], tables.dequantize_nvfp4(*entries)[[2, 7, 8]]))
    return found[0].double(), q[0].double(), keys


@pytest.mark.parametrize("sink", [-30.0, 0.5, 30.0])
def test_attention_is_a_softmax_with_a_sink_in_the_denominator(rng: np.random.Generator, sink: float) -> None:
    found, q, keys = attention_case(rng, sink)
    scores = torch.cat((q @ keys.T * 32**-0.5, torch.full((4, 1), sink, dtype=torch.float64)), dim=1)
    expected = torch.softmax(scores, dim=1)[:, :-1] @ keys
    assert float((found - expected).abs().max() / expected.abs().max()) < 2.0**-7


def test_attention_weights_are_rounded_against_an_integer_power_of_two(rng: np.random.Generator) -> None:
    found, q, keys = attention_case(rng, 0.5)
    for head in range(4):
        exponents = [float(score) * 32**-0.5 * math.log2(math.e) for score in keys @ q[head]]
        top = math.ceil(max(*exponents, 0.5 * math.log2(math.e)))
        weights = [2 ** (exponent - top) for exponent in exponents]
        total = math.fsum(weights) + 2 ** (0.5 * math.log2(math.e) - top)
        for channel in range(32):
            terms = [nearest_bf16(weight) * float(key[channel]) for weight, key in zip(weights, keys, strict=True)]
            assert float(found[head, channel]) == nearest_bf16(math.fsum(terms) / total)


def test_a_row_that_sees_nothing_gives_zero(rng: np.random.Generator) -> None:
    rows = Packed(*quantize_fp8(bf16(rng, 2, 32)))
    nothing = torch.full((2, 3), -1)
    found = sparse_attention(bf16(rng, 2, 4, 32), rows, rows, nothing, None, None, torch.zeros(4), 1.0)
    assert not found.any()
