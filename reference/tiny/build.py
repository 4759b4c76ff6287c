"""Untrained checkpoints for tests: random weights of any configuration, in the released names and dtypes.

Knows the tensor plan and how large values may be so that no branch of the model is dead. Knows nothing about training.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from reference.checkpoint import save_checkpoint
from reference.spec.config import ModelConfig
from reference.spec.tensors import TensorSpec
from reference.spec.token_map import engram_token_map
from reference.tiny.initial import named_generator
from reference.tiny.parameters import value_specs
from reference.tiny.tokenizer import random_tokenizer


def random_value(spec: TensorSpec, seed: int) -> Tensor:
    """float32 values of one tensor; a function of its name, its shape and the seed.

    Sinks, router biases, mixing bases and Engram weights are far from their neutral values, matrices keep the size of
    their input, so that softplus, sigmoid and Engram gates are not saturated (V4.1 model specification §13).
    """
    name, shape = spec.name, spec.value_shape
    noise = torch.randn(shape, generator=named_generator(name, seed))
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return 1 + 0.3 * noise
    if name.endswith(("attn_sink", "_base", "embed.weight")):
        return noise
    if name.endswith("_scale"):
        return 0.5 + 0.1 * noise
    if name.endswith("gate.bias"):
        return 0.1 * noise
    if name == "head.weight" or name.endswith("markov_head.head.weight"):
        return 2 * noise * shape[-1] ** -0.5
    return noise * shape[-1] ** -0.5


def random_weights(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """float32 values of every tensor that the text engine loads, by name."""
    return {name: random_value(spec, seed) for name, spec in value_specs(config).items()}


def random_checkpoint(config: ModelConfig, seed: int, folder: str | Path) -> ModelConfig:
    """Write config.json, model.safetensors and a tokenizer.json of exactly `vocab_size` ids to a folder.

    Args:
        config: any configuration whose vocabulary holds the ten special tokens.
        seed: other seeds give other weights; the same one gives the same bytes.
        folder: made if absent.
    Returns: the configuration written. It differs from the given one where Engram's constants must fit the tokenizer:
        `engram_compressed_vocab_size` is the number of compressed ids that this tokenizer has.
    """
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = Path(scratch) / "tokenizer.json"
        random_tokenizer(config.vocab_size).save(str(tokenizer))
        if config.engram_layer_ids:
            compressed = int(engram_token_map(tokenizer, config.vocab_size).max()) + 1
            config = dataclasses.replace(config, engram_compressed_vocab_size=compressed)
        save_checkpoint(folder, config, random_weights(config, seed), tokenizer)
    return config
