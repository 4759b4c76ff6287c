"""A random checkpoint of a few hundred kilobytes with every kind of tensor, for tests of files.

It knows shapes and formats only; the model it describes says nothing sensible.
"""

import json
from pathlib import Path
from typing import Any

import torch

from reference.checkpoint import save_checkpoint
from reference.spec import ModelConfig, RopeScaling
from reference.spec.engram import table_primes
from reference.spec.tensors import tensor_plan

TOKENS = ["<bos>", "<eos>", "<pad>", "a", "A", "b", "B", "c"]  # a and A share a compressed id, and so do b and B
TABLE_ROWS = sum(map(sum, table_primes(layers=1, max_ngram=3, heads=2, vocab_size=20)[0]))

CONFIG = ModelConfig(
    vocab_size=16,
    hidden_size=64,
    num_hidden_layers=3,
    num_attention_heads=2,
    head_dim=32,
    qk_rope_head_dim=16,
    q_lora_rank=32,
    o_lora_rank=16,
    o_groups=2,
    moe_intermediate_size=32,
    swiglu_limit=10.0,
    rms_norm_eps=1e-20,
    max_position_embeddings=256,
    sliding_window=8,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(4.0, 32.0, 1.0, 64),
    n_routed_experts=4,
    num_experts_per_tok=2,
    routed_scaling_factor=1.5,
    compress_ratios=(0, 2, 1, 0),
    kv_source_layer_ids=(1, 2),
    index_source_layer_ids=(1, 2),
    index_n_heads=2,
    index_head_dim=32,
    index_topk=4,
    hc_mult=2,
    hc_sinkhorn_iters=3,
    hc_eps=1e-6,
    engram_layer_ids=(0,),
    engram_num_embeddings=(TABLE_ROWS,),
    engram_max_ngram_size=3,
    engram_vocab_size=20,
    engram_n_heads=2,
    engram_head_dim=32,
    engram_compressed_vocab_size=6,
    num_nextn_predict_layers=1,
    dspark_block_size=2,
    dspark_target_layer_ids=(2,),
    dspark_markov_rank=8,
    dspark_n_routed_experts=2,
    dspark_num_experts_per_tok=1,
)


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Standard normal values for every tensor that holds values, each rounded only when it is stored."""
    generator = torch.Generator().manual_seed(seed)
    specs = [spec for spec in tensor_plan(config).values() if spec.loaded and spec.dtype != "F8_E8M0"]
    return {spec.name: torch.randn(spec.value_shape, generator=generator) for spec in specs}


def write_tokenizer(path: Path, tokens: list[str]) -> None:
    """A tokenizer.json that maps whole words to ids."""
    model = {"type": "WordLevel", "vocab": {token: index for index, token in enumerate(tokens)}, "unk_token": "<pad>"}
    empty = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    document: dict[str, Any] = {"version": "1.0", "added_tokens": [], **dict.fromkeys(empty), "model": model}
    path.write_text(json.dumps(document), encoding="utf-8")


def write_small_checkpoint(folder: Path, config: ModelConfig = CONFIG, max_shard_bytes: int | None = None) -> Path:
    """Write config, tensors and tokenizer into a folder, which is made if absent."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder / "tokenizer.json", TOKENS)
    save_checkpoint(folder, config, random_weights(config), folder / "tokenizer.json", max_shard_bytes)
    return folder
