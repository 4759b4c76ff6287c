"""Random small configurations in which every branch of the model is alive; knows the laws, no weights.

Windows, top-k limits and candidate limits are small, so that prompts of a hundred tokens go past all of them.
"""

from __future__ import annotations

import random

from reference.spec import ModelConfig
from reference.spec.engram import table_primes


def random_config(seed: int) -> ModelConfig:
    """A configuration of 1 to 8 layers: a function of the seed.

    One to three KV sources of falling ratio (4, 3, 2, 1), reuse and reindex layers after them, candidates in most,
    Engram in most, quantised or not, with or without YaRN.
    """
    rng = random.Random(seed)
    ratios, kv_sources, index_sources = _layers(rng)
    layers = len(ratios)
    block = rng.choice((2, 4, 8))
    topk = rng.choice((4, 8, 16))
    candidates = kv_sources[-1] if rng.random() < 0.75 else None
    engram_layers = sorted(rng.sample(range(layers), min(layers, rng.choice((0, 1, 2, 2)))))
    ngram, engram_heads, engram_vocab = rng.choice((2, 3, 4)), rng.choice((1, 2)), rng.choice((50, 100))
    primes = table_primes(len(engram_layers), ngram, engram_heads, engram_vocab)
    heads = rng.choice((2, 4))
    rope = rng.choice((16, 32))
    text = {
        "vocab_size": 384,
        "hidden_size": rng.choice((64, 96)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": rng.choice((32, 64)),
        "qk_rope_head_dim": rope,
        "q_lora_rank": rng.choice((32, 64)),
        "o_lora_rank": 32,
        "o_groups": rng.choice((1, 2)),
        "moe_intermediate_size": rng.choice((32, 64)),
        "swiglu_limit": rng.choice((0.5, 1.0, 10.0)),
        "rms_norm_eps": 1e-20,
        "max_position_embeddings": 1024,
        "sliding_window": rng.choice((8, 16, 31)),
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": _rope_scaling(rng),
        "n_routed_experts": rng.choice((4, 8)),
        "n_shared_experts": 1,
        "num_experts_per_tok": rng.choice((2, 3)),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "compress_ratios": ratios,
        "kv_source_layer_ids": kv_sources,
        "index_source_layer_ids": index_sources,
        "index_n_heads": rng.choice((2, 4)),
        "index_head_dim": rng.choice((32, 64)),
        "index_topk": topk,
        "candidate_source_layer_id": -1 if candidates is None else candidates,
        "candidate_topk_blocks": -(-(topk + block - 1) // block) + rng.choice((0, 1, 2)),
        "candidate_block_size": block,
        "hc_mult": rng.choice((2, 4)),
        "hc_sinkhorn_iters": rng.choice((2, 3, 20)),
        "hc_eps": 1e-6,
        "engram_layer_ids": engram_layers,
        "engram_num_embeddings": [sum(map(sum, sizes)) for sizes in primes],
        "engram_max_ngram_size": ngram,
        "engram_vocab_size": engram_vocab,
        "engram_n_heads": engram_heads,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 300,
        "num_nextn_predict_layers": 0,
    }
    root = {"model_type": "deepseek_v41", "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "text_config": text}
    if rng.random() < 0.75:
        root["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        }
    return ModelConfig.from_dict(root)


def _layers(rng: random.Random) -> tuple[list[int], list[int], list[int]]:
    ratios = [0] * rng.choice((0, 1, 1))
    kv_sources: list[int] = []
    index_sources: list[int] = []
    sections = sorted(rng.sample((4, 3, 2, 1), rng.choice((1, 2, 3))), reverse=True)
    for ratio in sections:
        source = len(ratios)
        kv_sources.append(source)
        length = rng.choice((1, 2, 3) if ratio == sections[-1] else (1, 1, 2))
        ratios += [ratio] * length
        index_sources += [source, *(source + k for k in range(1, length) if rng.random() < 0.5)]
    return ratios, kv_sources, index_sources


def _rope_scaling(rng: random.Random) -> dict[str, object] | None:
    if rng.random() < 0.25:
        return None
    return {
        "rope_type": "yarn",
        "factor": rng.choice((4.0, 16.0)),
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": rng.choice((64, 256)),
    }
