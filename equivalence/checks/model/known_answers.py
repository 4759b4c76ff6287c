"""Case `known_answers` of check `model`: terms that no golden pack reaches, against numbers worked out by hand.

Clamps that random weights never touch, ties, floors, an eps that only tiny inputs show, byte vectors of the released
checkpoint. Knows the reference's small functions; needs no pack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from equivalence.cases import Case
from equivalence.findings import Findings
from reference import formats
from reference.model import attention, engram, hyper_connections, indexer, moe, norm, rope
from reference.model.weights import Weights
from reference.numerics import UNQUANTIZED
from reference.spec import ModelConfig

Answer = tuple[Tensor, Tensor]
"""What the reference computes, and what it must be."""


def case() -> Case:
    """The one case."""
    return Case("model", "known_answers", {"part": "known_answers"})


def run() -> Findings:
    """Compare every answer: integers and masks exactly, floats to 1e-9 of each value."""
    findings = Findings()
    for answer in ANSWERS:
        got, want = answer()
        row = "model.known_answers" if want.is_floating_point() else "exact"
        findings.values(answer.__name__, answer.__name__, got, want, row)
    return findings.close()


def swiglu_clamps() -> Answer:
    """§7: gate -40 stays -40, up 20 becomes 10; gate 20 becomes 10, up -20 becomes -10."""
    weights = _weights(w1=[[1.0, 0.0]], w3=[[0.0, 1.0]], w2=[[1.0]])
    x = _floats([[-40.0, 20.0], [20.0, -20.0]])
    got = moe.expert(x, None, weights, _config(quantized=False, swiglu_limit=10.0), UNQUANTIZED)
    return got, _floats([[-40 / (1 + math.exp(40.0)) * 10], [10 / (1 + math.exp(-10.0)) * -10]])


def routing_weights() -> Answer:
    """§7: scores (2, 1, 1) and biases (0, 0, 5) choose experts 0 and 2, weighed 2 : 1, scaled by 1.5."""
    logits = [math.log(math.exp(4.0) - 1), math.log(math.e - 1), math.log(math.e - 1)]
    weights = _weights(weight=[[logit] for logit in logits], bias=[0.0, 0.0, 5.0])
    config = _config(norm_topk_prob=True, routed_scaling_factor=1.5)
    return moe.route(_floats([[1.0]]), 2, weights, config).weight, _floats([[1.0, 0.0, 0.5]])


def selection_ties() -> Answer:
    """§4.6: the lower index wins a tie; an invisible row is never selected."""
    got = indexer.top_rows(_floats([[1.0, 2.0, 2.0, 2.0], [3.0, -math.inf, -math.inf, -math.inf]]), 2)
    return got, torch.tensor([[False, True, True, False], [True, False, False, False]])


def candidate_ties() -> Answer:
    """§4.6: of two blocks: the newest is forced, then the lower of two equal ones."""
    score = _floats([[1.0, 1.0, 1.0, 1.0, 0.0, -math.inf]])
    config = _config(candidate_block_size=2, candidate_topk_blocks=2)
    got = indexer.candidates(score, torch.tensor([4]), 1, config)
    return got, torch.tensor([[True, True, False, False, True, True]])


def visible_rows() -> Answer:
    """§4.5: a group of three is visible from its last token on."""
    return indexer.visible_rows(torch.arange(7), 3), torch.tensor([0, 0, 1, 1, 1, 2, 2])


def window_bounds() -> Answer:
    """§4.3, §10: a window of two that may not reach below position 1."""
    want = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
    return attention.window_mask(torch.arange(4), 2, 1), want


def core_of_one_key() -> Answer:
    """§4.7: one key of score 1 against a sink of 0, and a query that sees nothing."""
    q = _floats([[[2.0, 0.0, 0.0, 0.0]], [[2.0, 0.0, 0.0, 0.0]]])
    kv = _floats([[1.0, 2.0, 3.0, 4.0]])
    got = attention.core(q, kv, torch.tensor([[True], [False]]), _floats([0.0]), UNQUANTIZED)
    return got, torch.stack((kv / (1 + math.exp(-1.0)), 0 * kv))


def norm_of_tiny_values() -> Answer:
    """§0: values of 1e-6 are normalised like any others, eps is 1e-20."""
    got = norm.rms_norm(_floats([3e-6, 4e-6]), _floats([1.0, 2.0]), 1e-20, UNQUANTIZED)
    return got, _floats([3.0, 8.0]) / math.sqrt(12.5 * (1 + 1e-20 / 12.5e-12))


def mix_of_tiny_streams() -> Answer:
    """§3: one statistic over all streams, eps 1e-20; pre has 1e-6 added, post is doubled, comb is balanced."""
    config = _config(hc_mult=2, rms_norm_eps=1e-20, hc_eps=1e-6, hc_sinkhorn_iters=20)
    fn = torch.zeros(8, 2, dtype=torch.float64)  # [2C + C², C·D]
    fn[0, 0] = fn[2, 1] = 1.0
    mixed = hyper_connections.mix(_floats([[3e-6], [4e-6]]), fn, _floats([1.0, 1.0, 1.0]), torch.zeros(8), config)
    scale = 1 / math.sqrt(12.5 * (1 + 1e-20 / 12.5e-12))
    pre = [1 / (1 + math.exp(-3 * scale)) + 1e-6, 0.5 + 1e-6]
    post = [2 / (1 + math.exp(-4 * scale)), 1.0]
    return torch.cat((mixed.pre, mixed.post)), _floats(pre + post)


def yarn_ramp() -> Answer:
    """§4.1 with the released numbers: frequencies 0-15 kept, 25-31 divided by 16, linear between."""
    scaling = SimpleNamespace(factor=16.0, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536)
    config = _config(qk_rope_head_dim=64, rope_theta=10000.0, compress_rope_theta=160000.0, rope_scaling=scaling)
    ratio = rope.layer_frequencies(config, 2) / rope.plain_frequencies(160000.0, 64)  # [32]
    got = torch.round(ratio[[0, 15, 20, 25, 31]].double() * 2**12).long()
    return got, torch.tensor([4096, 4096, 2176, 256, 256])


def rotation() -> Answer:
    """§4.1: the last pair of four channels turns by position times frequency, the first two stay."""
    got = rope.rotate(_floats([[5.0, 6.0, 1.0, 0.0]]), torch.tensor([2]), torch.tensor([0.5]), UNQUANTIZED)
    return got, _floats([[5.0, 6.0, math.cos(1.0), math.sin(1.0)]])


def engram_hash() -> Answer:
    """§6.2: products joined by exclusive or, pad before the start, remainder, offset."""
    ids, numbers = torch.tensor([5, 7]), (torch.tensor([3, 5]), torch.tensor([11]), torch.tensor([100]))
    return engram.hash_rows(ids, 2, *numbers), torch.tensor([[105], [101]])


def engram_gate_floor() -> Answer:
    """§6.3: a small negative dot product counts as -1e-6 under the root, and keeps its sign."""
    weights = _weights(q_weight=[[1.0, 1.0]], k_weight=[[1.0, 1.0]])
    got = engram.gate(_floats([[1.0, 0.0]]), _floats([[-1e-8, 1.0]]), weights, _config(rms_norm_eps=1e-20))
    return got, _floats([1 / (1 + math.exp(1e-3))])


def e2m1_ties() -> Answer:
    """§5.2: midpoints go to the even code, the range saturates, a negative zero keeps its sign."""
    values = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.0, -0.75])
    return formats.encode_e2m1(values), torch.tensor([0, 2, 2, 4, 4, 6, 6, 7, 8, 10], dtype=torch.uint8)


def activation_blocks() -> Answer:
    """§5.1: 449 takes scale 2 and becomes 448; 1e-9 alone meets the floor, scale 2^-22, and becomes 2^-8 of it."""
    x = torch.zeros(2, 32)
    x[0, 0], x[1, 0] = 449.0, 1e-9
    return formats.fake_fp8(x)[:, 0].double(), _floats([448.0, 2.0**-30])


def compressed_blocks() -> Answer:
    """§5.2: the largest value 7 takes scale E4M3(7/6) = 1.125, so 7 becomes 6.75 and 3.1 becomes 3.375."""
    x = torch.zeros(1, 16)
    x[0, 0], x[0, 1] = 7.0, 3.1
    return formats.fake_nvfp4(x)[0, :2].double(), _floats([6.75, 3.375])


def index_blocks() -> Answer:
    """§5.2: the largest value 7 takes scale 2, so 7 becomes 8 (3.5 ties to 4) and 3.1 becomes 3."""
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1] = 7.0, 3.1
    return formats.fake_mxfp4(x)[0, :2].double(), _floats([8.0, 3.0])


def released_fp8_bytes() -> Answer:
    """§2: bytes of the released checkpoint, layers.0.attn.wkv."""
    codes = torch.tensor([list(bytes.fromhex("d871f2797069f0e5"))], dtype=torch.uint8)
    want = [-0.00390625, 0.03515625, -0.0390625, 0.0703125, 0.03125, 0.017578125, -0.03125, -0.0126953125]
    return formats.decode_fp8_tiles(codes, _byte(0x73))[0].double(), _floats(want)


def released_fp4_bytes() -> Answer:
    """§2: bytes of the released checkpoint, layers.0.ffn.experts.0.w1; the even column is the low nibble."""
    row = list(bytes.fromhex("a0a8ec4aadaf42aa")) + [0] * 8
    packed = torch.tensor([row], dtype=torch.uint8)  # [1, 16]
    eighths = [0, -1, 0, -1, -2, -4, -1, 2, -3, -1, -6, -1, 1, 2, -1, -1]
    return formats.decode_fp4_rows(packed, _byte(0x78))[0, :16].double(), _floats([e / 128 for e in eighths])


ANSWERS: tuple[Callable[[], Answer], ...] = (
    swiglu_clamps,
    routing_weights,
    selection_ties,
    candidate_ties,
    visible_rows,
    window_bounds,
    core_of_one_key,
    norm_of_tiny_values,
    mix_of_tiny_streams,
    yarn_ramp,
    rotation,
    engram_hash,
    engram_gate_floor,
    e2m1_ties,
    activation_blocks,
    compressed_blocks,
    index_blocks,
    released_fp8_bytes,
    released_fp4_bytes,
)


def _floats(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _byte(value: int) -> Tensor:
    return torch.tensor([[value]], dtype=torch.uint8)


def _weights(**values: list[Any]) -> Weights:
    return Weights({name: _floats(value) for name, value in values.items()})


def _config(**fields: object) -> ModelConfig:
    return cast(ModelConfig, SimpleNamespace(**fields))
