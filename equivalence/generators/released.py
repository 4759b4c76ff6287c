"""A small model with the released ratios: as many experts, heads and selected entries, one layer of each kind.

Knows the released numbers; only the hidden size and the ranks, which no limit depends on, are small. Source:
DeepSeek-V4.1-Flash config.json.
"""

from __future__ import annotations

from reference.spec import ModelConfig
from reference.spec.engram import table_primes

_PRIMES = table_primes(1, 4, 2, 100)


def released_ratios() -> ModelConfig:
    """Window only, ratio-2 source with Engram, ratio-1 source with candidates, reuse, reindex among candidates."""
    text = {
        "vocab_size": 384,
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 32,
        "o_lora_rank": 32,
        "o_groups": 8,
        "moe_intermediate_size": 32,
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "max_position_embeddings": 4096,
        "sliding_window": 128,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 256,
        },
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "compress_ratios": [0, 2, 1, 1, 1],
        "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2, 4],
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": 2,
        "candidate_topk_blocks": 65,
        "candidate_block_size": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "engram_layer_ids": [1],
        "engram_num_embeddings": [sum(map(sum, sizes)) for sizes in _PRIMES],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 100,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 300,
        "num_nextn_predict_layers": 0,
    }
    return ModelConfig.from_dict(
        {
            "model_type": "deepseek_v41",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "text_config": text,
            "quantization_config": {
                "quant_method": "fp8",
                "activation_scheme": "dynamic",
                "weight_block_size": [32, 32],
                "scale_fmt": "ue8m0",
                "expert_dtype": "fp4",
            },
        }
    )
