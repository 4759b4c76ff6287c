"""Initial values of the tensors that training starts from, by name.

Knows the tensor plan. Knows nothing about data or optimizers. Every tensor draws from a generator seeded with its own
name, so that adding one tensor does not change another.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from reference.spec.config import ModelConfig
from reference.spec.tensors import TensorSpec
from reference.tiny.parameters import value_specs

SMALL_OUTPUTS = ("wo_b.weight", "w2.weight", "engram.wkv.weight")
"""Linears that write into the residual streams: they start small."""


def named_generator(name: str, seed: int) -> torch.Generator:
    """A CPU generator that depends on the name and the seed alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def hyper_connection_base(copies: int, noise: Tensor) -> Tensor:
    """Base of a mix that starts near: collapse = mean of the streams, post = 1, streams carried unmixed. [2C + C²]."""
    pre = torch.full((copies,), -1.1)  # [C], sigmoid about 1/4
    post = torch.zeros(copies)  # [C], twice a sigmoid: 1
    comb = 4.0 * torch.eye(copies)  # [C, C]
    return torch.cat((pre, post, comb.flatten())) + 0.3 * noise  # [2C + C²]


def initial_value(spec: TensorSpec, config: ModelConfig, seed: int) -> Tensor:
    """float32 values of one tensor."""
    shape, name = spec.value_shape, spec.name
    noise = torch.randn(shape, generator=named_generator(name, seed))
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return torch.ones(shape)
    if name.endswith("_base"):
        return hyper_connection_base(config.hc_mult, noise)
    if name.endswith("_scale"):
        return torch.full(shape, 0.1)
    if name.endswith(("attn_sink", "gate.bias", "confidence_head.proj.weight")):
        return torch.zeros(shape)
    if name in ("embed.weight", "head.weight"):
        return noise * (0.5 if name == "embed.weight" else 0.02)
    if name.endswith(("markov_head.embed.weight", "engram.embed.weight")):
        return noise * 0.5
    if name.endswith("markov_head.head.weight"):
        return noise * 0.01
    scale = 0.1 if name.endswith(SMALL_OUTPUTS) else 0.5
    return noise * (scale * shape[-1] ** -0.5)


def initial_values(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """float32 values of every trained tensor of a configuration, by name."""
    return {name: initial_value(spec, config, seed) for name, spec in value_specs(config).items()}
