"""A worker without a model: its logits are a hash of the tokens so far. For tests of everything around the model.

It keeps the tokens of each state slot, so it notices a row out of order, a slot that was not zeroed and a page table
that is too short.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized import LLM
from optimized._core import StepPlan
from optimized.config import EngineConfig
from reference.spec.config import ModelConfig

VOCAB = 300
CONTEXT = 96


class StubWorker:
    """Logits [S, V] that depend on the tokens of the row's sequence and on nothing else."""

    def __init__(self, config: EngineConfig, vocab_size: int = VOCAB) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.history: dict[int, list[int]] = {}
        self.steps = 0
        self.broken: dict[tuple[int, ...], Any] = {}

    def num_pages(self) -> int:
        length = self.config.max_model_len or 0
        return self.config.num_pages or self.config.max_num_seqs * (length // self.config.page_size + 2)

    def execute(self, plan: StepPlan, more_rows: Any = None, previous: torch.Tensor | None = None) -> torch.Tensor:
        self.steps += 1
        step_tokens = plan.tokens.copy()
        for r, source in enumerate(plan.previous_rows.tolist()):
            if source >= 0:
                assert previous is not None
                step_tokens[plan.query_start[r]] = previous[source]
        rows, after = [], {}
        for r, slot in enumerate(plan.slots.tolist()):
            if plan.fresh[r]:
                self.history[slot] = []
            tokens = self.history[slot]
            begin, end = int(plan.query_start[r]), int(plan.query_start[r + 1])
            if plan.positions[begin:end].tolist() != list(range(len(tokens), len(tokens) + end - begin)):
                raise AssertionError(f"slot {slot} holds {len(tokens)} tokens, got rows {plan.positions[begin:end]}")
            for row, token in enumerate(step_tokens[begin:end].tolist(), start=begin):
                tokens.append(token)
                if more_rows is not None and row in more_rows:
                    after[row] = self.logits(tokens)
            if np.count_nonzero(plan.page_table[r]) * self.config.page_size < len(tokens):
                raise AssertionError(f"slot {slot}: {len(tokens)} tokens in pages {plan.page_table[r]}")
            if plan.sample_rows[r] >= 0:
                rows.append(self.logits(tokens))
        rows.extend(after[row] for row in ([] if more_rows is None else more_rows.tolist()))
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size, dtype=torch.float64)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """[V] float64 for the token after `tokens`."""
        fault = self.broken.get(tuple(tokens))
        if isinstance(fault, BaseException):
            raise fault
        seed = np.random.SeedSequence(tokens)
        row = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, self.vocab_size))
        return row if fault is None else torch.full_like(row, fault)


def model_folder(folder: Path, *, tokenizer: bool = True, eos: int = 1, vocab_size: int = VOCAB) -> Path:
    """A folder with a configuration and, if wanted, a byte-level tokenizer of 256 bytes, EOS and a few words."""
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=32,
        q_lora_rank=32,
        o_lora_rank=32,
        o_groups=2,
        moe_intermediate_size=32,
        swiglu_limit=10.0,
        rms_norm_eps=1e-6,
        max_position_embeddings=CONTEXT,
        sliding_window=32,
        rope_theta=10000.0,
        compress_rope_theta=10000.0,
        n_routed_experts=4,
        num_experts_per_tok=2,
        routed_scaling_factor=1.0,
        compress_ratios=(0,),
        kv_source_layer_ids=(),
        index_source_layer_ids=(),
        hc_mult=4,
        hc_sinkhorn_iters=2,
        hc_eps=1e-6,
        eos_token_id=eos,
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    if tokenizer:
        byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_level_tokenizer() -> Any:
    """ids 0 and 1: BOS and EOS; then the 256 bytes; then a few words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [("t", "h"), ("th", "e"), ("a", "n"), ("an", "d"), ("Ġ", "the")]
    pieces = ["<s>", "</s>", *alphabet, *(first + second for first, second in words)]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=words)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def stub_llm(monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any) -> tuple[LLM, StubWorker]:
    """An LLM over a model folder whose worker is a stub, and that stub."""
    workers: list[StubWorker] = []

    def load(_folder: Path, config: EngineConfig) -> StubWorker:
        vocab_size = ModelConfig.from_file(_folder).vocab_size
        workers.append(StubWorker(config, vocab_size))
        return workers[-1]

    monkeypatch.setattr("optimized.llm._load_worker", load)
    defaults = {"max_num_seqs": 4, "page_size": 8, "max_num_batched_tokens": 24}
    return LLM(folder, **{**defaults, **options}), workers[0]
