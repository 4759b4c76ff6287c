"""Hugging Face Transformers' `deepseek_v4` at a size like a given model's, in eager mode, with random weights.

V4 is the nearest architecture that Transformers ships: the same hyper-connections, sliding window, compressed sparse
attention and router, but no Engram, no draft, ratios of 4 and 128 instead of 1 and 2, and no quantised arithmetic. The
figure says what a general eager implementation of like size reaches, not what V4.1 would. Knows a model's sizes; knows
nothing about its weights.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from reference.spec.config import ModelConfig


class BaselineUnavailableError(Exception):
    """Transformers is not installed, or ships no deepseek_v4; says which."""


@dataclass(frozen=True)
class Baseline:
    """A model that generates. parameters: how many it has. name: library, version, architecture, dtype."""

    model: Any
    parameters: int
    name: str

    @classmethod
    def like(cls, config: ModelConfig, device: torch.device) -> Baseline:
        """A model with the widths, layers, heads and experts of `config`.

        Raises:
            BaselineUnavailableError: there is none to be had here.
        """
        try:
            import transformers
            from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
        except ImportError as error:
            raise BaselineUnavailableError(f"no deepseek_v4 of Hugging Face Transformers here: {error}") from error
        layers = config.num_hidden_layers
        sizes = DeepseekV4Config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            moe_intermediate_size=config.moe_intermediate_size,
            num_hidden_layers=layers,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            q_lora_rank=config.q_lora_rank,
            o_lora_rank=config.o_lora_rank,
            o_groups=config.o_groups,
            num_experts_per_tok=config.num_experts_per_tok,
            n_routed_experts=config.n_routed_experts,
            max_position_embeddings=config.max_position_embeddings,
            layer_types=["sliding_attention", *["compressed_sparse_attention"] * (layers - 1)],
            mlp_layer_types=["moe"] * layers,
            hc_mult=config.hc_mult,
            hc_sinkhorn_iters=config.hc_sinkhorn_iters,
            sliding_window=config.sliding_window,
            index_n_heads=config.index_n_heads,
            index_head_dim=config.index_head_dim,
            index_topk=config.index_topk,
            partial_rotary_factor=config.qk_rope_head_dim / config.head_dim,
            bos_token_id=None,
            eos_token_id=None,
        )
        torch.manual_seed(0)
        model = DeepseekV4ForCausalLM._from_config(sizes, attn_implementation="eager", dtype=torch.bfloat16)
        model = model.eval().to(device)
        count = sum(parameter.numel() for parameter in model.parameters())
        return cls(model, count, f"transformers {transformers.__version__} deepseek_v4, eager, bfloat16")

    @torch.inference_mode()
    def seconds(self, prompts: list[list[int]], tokens: int) -> float:
        """How long a greedy `generate` of `tokens` new tokens for prompts of one length takes."""
        ids = torch.tensor(prompts, device=self.model.device)  # [B, L]
        start = time.perf_counter()
        made = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens
        )
        took = time.perf_counter() - start
        if made.shape[1] != ids.shape[1] + tokens:
            raise RuntimeError(f"the baseline made {made.shape[1] - ids.shape[1]} tokens instead of {tokens}")
        return took
