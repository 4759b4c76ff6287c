"""A worker without a model: its logits are a hash of the tokens so far. For tests of everything around the model.

It keeps the tokens of each state slot, so it notices a row out of order, a slot that was not zeroed and a page table
that is too short.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from optimized import LLM
from optimized._core import StepPlan
from optimized.config import EngineConfig
from optimized.model.draft import Choose, Draft
from optimized.model.tests.random_models import WINDOWS
from optimized.worker.decode_rows import BlockLimits, BlockResults
from optimized.worker.input_batch import InputBatch, Prepared
from reference.spec.config import ModelConfig

VOCAB = 300
BLOCK = 5
CONTEXT = 96


@dataclasses.dataclass(frozen=True)
class StubStep:
    """A step that was prepared, and its plan."""

    prepared: Prepared
    plan: StepPlan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.prepared, name)


class StubWorker:
    """Logits [S, V] that depend on the tokens of the row's sequence and on nothing else."""

    def __init__(self, config: EngineConfig, vocab_size: int = VOCAB) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.history: dict[int, list[int]] = {}
        self.steps = 0
        self.broken: dict[tuple[int, ...], Any] = {}
        rows, pages = config.max_num_batched_tokens or 0, (config.max_model_len or 0) // config.page_size + 2
        device = torch.device("cpu")
        self._batch = InputBatch(rows, config.max_num_seqs, pages, config.page_size, device, nextn=config.nextn)

    def num_pages(self) -> int:
        length = self.config.max_model_len or 0
        return self.config.num_pages or self.config.max_num_seqs * (length // self.config.page_size + 2)

    def prepare(
        self,
        plan: StepPlan,
        more_rows: Any = None,
        limits: BlockLimits | None = None,
        previous: BlockResults | None = None,
    ) -> StubStep:
        for slot in plan.slots[plan.fresh].tolist():
            self.history[slot] = []
        return StubStep(self._batch.fill(plan, more_rows, limits, previous), plan)

    def forward(self, step: StubStep) -> torch.Tensor:
        self.steps += 1
        inputs = step.prepared.inputs
        wanted = inputs.sample_rows[: step.prepared.wanted].tolist()
        after = {}
        for row, (token, position) in enumerate(zip(inputs.tokens.tolist(), inputs.positions.tolist(), strict=True)):
            if position < 0:
                continue
            slot, first = int(inputs.slots[row]), row == int(inputs.first_rows[row])
            tokens = self.history[slot]
            if position > len(tokens) or (position < len(tokens) and not first):
                raise AssertionError(f"slot {slot} holds {len(tokens)} tokens, got a row at {position}")
            tokens[position:] = [token]
            if int(inputs.page_table[inputs.row_request[row], position // self.config.page_size]) == 0:
                raise AssertionError(f"slot {slot}: position {position} has no page in {step.plan.page_table}")
            if row in wanted:
                after[row] = self.logits(tokens)
        nobody = torch.full((self.vocab_size,), torch.nan, dtype=torch.float64)
        rows = [after.get(row, nobody) for row in wanted]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size, dtype=torch.float64)

    def propose(
        self, step: StubStep, places: torch.Tensor, tokens: torch.Tensor, accepted: torch.Tensor, choose: Choose
    ) -> Draft:
        """Drafts by `draft_logits`; what is confided is the number of the slot, from 2 down."""
        contexts = []
        for place, token, kept in zip(places.tolist(), tokens.tolist(), accepted.tolist(), strict=True):
            past = self.history[int(step.slots[place])][: int(step.anchors[place]) + kept + 1]
            contexts.append([*past, token])
        ids, logits = [], []
        for slot in range(BLOCK):
            logits.append(torch.stack([self.draft_logits(context) for context in contexts]))
            ids.append(choose(logits[-1], slot))
            for context, token in zip(contexts, ids[-1].tolist(), strict=True):
                context.append(token)
        confidence = torch.arange(2, 2 - BLOCK, -1, dtype=torch.float64).expand(len(contexts), -1)
        return Draft(torch.stack(ids, dim=1), torch.stack(logits, dim=1), confidence)

    def draft_logits(self, tokens: list[int]) -> torch.Tensor:
        """[V] float64 that a draft is drawn from: those of the model, with noise of its own."""
        noise = np.random.default_rng(np.random.SeedSequence([7, *tokens])).normal(0, 1, self.vocab_size)
        return self.logits(tokens) + torch.from_numpy(noise)

    def time_steps(self, rows: int, repeats: int) -> list[float]:
        return [10.0 + 0.5 * rows] * repeats

    def fingerprint(self) -> dict[str, str]:
        return {"model": "stub"}

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
    config = dataclasses.replace(
        WINDOWS,
        vocab_size=vocab_size,
        num_hidden_layers=1,
        max_position_embeddings=CONTEXT,
        sliding_window=32,
        compress_ratios=(0, 0),
        num_nextn_predict_layers=1,
        dspark_block_size=BLOCK,
        dspark_target_layer_ids=(0,),
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
