"""Small random models for tests: configurations with every kind of layer, their checkpoints, and a model in caches.

Knows the tensor plan and how to lay out a step by hand; knows nothing about schedulers or tokenizers.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import torch

from optimized.model.caches import CacheGeometry, Caches
from optimized.model.draft import Anchors, Draft
from optimized.model.replay import select_rows
from optimized.model.step import KeptRows, StepInputs
from optimized.model.transformer import Transformer
from optimized.model.weights import load_weights
from reference.spec.config import ModelConfig, RopeScaling
from reference.spec.tensors import TensorSpec, tensor_plan

PAGE_SIZE = 8

#: Ratios 2 and 1, reuse and reindex layers, candidates, two Engram layers, a draft.
FULL = ModelConfig(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=6,
    num_attention_heads=4,
    head_dim=32,
    qk_rope_head_dim=16,
    q_lora_rank=32,
    o_lora_rank=32,
    o_groups=2,
    moe_intermediate_size=32,
    swiglu_limit=0.5,
    rms_norm_eps=1e-20,
    max_position_embeddings=4096,
    sliding_window=8,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(4.0, 32.0, 1.0, 64),
    n_routed_experts=8,
    num_experts_per_tok=3,
    routed_scaling_factor=1.5,
    compress_ratios=(0, 2, 2, 1, 1, 1, 0),
    kv_source_layer_ids=(1, 3),
    index_source_layer_ids=(1, 3, 5),
    index_n_heads=4,
    index_head_dim=32,
    index_topk=6,
    candidate_source_layer_id=3,
    candidate_topk_blocks=3,
    candidate_block_size=3,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    engram_layer_ids=(1, 4),
    engram_num_embeddings=(184, 258),
    engram_max_ngram_size=3,
    engram_vocab_size=40,
    engram_n_heads=2,
    engram_head_dim=32,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=60,
    num_nextn_predict_layers=1,
    dspark_block_size=3,
    dspark_noise_token_id=5,
    dspark_target_layer_ids=(4, 5),
    dspark_markov_rank=32,
    dspark_n_routed_experts=4,
    dspark_num_experts_per_tok=2,
)
#: Ratio 4, no candidates, no Engram, no draft.
RATIO_4 = dataclasses.replace(
    FULL,
    compress_ratios=(0, 4, 4, 4, 0, 4),
    kv_source_layer_ids=(1,),
    index_source_layer_ids=(1, 3),
    candidate_source_layer_id=None,
    engram_layer_ids=(),
    engram_num_embeddings=(),
    num_nextn_predict_layers=0,
)
#: bf16 weights, no input quantisation.
PLAIN = dataclasses.replace(FULL, quantized=False)
#: Windows only.
WINDOWS = dataclasses.replace(
    RATIO_4, compress_ratios=(0,) * 6, kv_source_layer_ids=(), index_source_layer_ids=(), rope_scaling=None
)
CONFIGS = {"full": FULL, "ratio 4": RATIO_4, "plain": PLAIN, "windows": WINDOWS}


def stored_values(spec: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """Random stored bytes of a tensor, sized so that no branch of the model is dead."""
    shape, name = spec.shape, spec.name
    if spec.dtype == "F8_E8M0":
        return rng.integers(115, 119, size=shape, dtype=np.uint8)
    if spec.dtype == "I8":
        return rng.integers(0, 256, size=shape, dtype=np.uint8)
    if spec.dtype == "F8_E4M3":
        return rng.integers(0, 0x78, size=shape, dtype=np.uint8) | rng.integers(0, 2, size=shape, dtype=np.uint8) << 7
    values = rng.standard_normal(shape) * (1.0 if len(shape) == 1 else shape[-1] ** -0.5)
    if name.endswith("norm.weight"):
        values = 1 + 0.3 * values
    if name == "embed.weight" or name.endswith(("q_weight", "k_weight")):
        values = values * shape[-1] ** 0.5
    if spec.dtype == "F32":
        return values.astype(np.float32)
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()


def write_checkpoint(config: ModelConfig, folder: Path, seed: int) -> None:
    """config.json and one safetensors file."""
    rng = np.random.default_rng(seed)
    header, blobs, offset = {}, [], 0
    for name, spec in tensor_plan(config).items():
        blob = stored_values(spec, rng).tobytes()
        header[name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"".join((len(text).to_bytes(8, "little"), text, *blobs)))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive rows of one sequence: its token ids so far, the rows [start, end), its slot and its pages."""

    tokens: list[int]
    start: int
    end: int
    slot: int
    pages: list[int]
    replay_start: int = 0


class ModelInCaches:
    """A random model over caches of its own."""

    def __init__(self, config: ModelConfig, folder: Path, num_pages: int = 65, num_slots: int = 6) -> None:
        device = torch.device("cpu")
        self.geometry = CacheGeometry.of(config, PAGE_SIZE, num_slots, num_pages)
        self.caches = Caches.allocate(config, self.geometry, device)
        token_map = torch.arange(config.vocab_size) * 7 % 60 if config.engram_layer_ids else None
        self._model = Transformer(config, load_weights(folder, config, device), token_map, self.geometry, drafts=True)

    def run(self, chunks: list[Chunk], compact: bool = False) -> list[torch.Tensor]:
        """Logits of every row, [rows, V] for each chunk, all in one step; with compact of the kept rows only."""
        counts = [chunk.end - chunk.start for chunk in chunks]
        starts = np.concatenate(([0], np.cumsum(counts))).tolist()
        pages = [chunk.pages[: -(-chunk.end // PAGE_SIZE)] for chunk in chunks]
        width = max(map(len, pages))

        def rows(values: list[int]) -> torch.Tensor:
            return torch.repeat_interleave(torch.tensor(values), torch.tensor(counts))

        begins, floors = np.array([[chunk.start, chunk.replay_start] for chunk in chunks]).T
        kept, kept_start = select_rows(np.array(starts), begins, floors)
        kept_counts = np.diff(kept_start)
        first = torch.from_numpy(np.repeat(kept_start[:-1], kept_counts))
        inputs = StepInputs(
            tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens[chunk.start : chunk.end]]),
            positions=torch.tensor([position for chunk in chunks for position in range(chunk.start, chunk.end)]),
            row_request=rows(list(range(len(chunks)))),
            slots=rows([chunk.slot for chunk in chunks]),
            first_rows=rows(starts[:-1]),
            first_positions=rows([chunk.start for chunk in chunks]),
            end_positions=rows([chunk.end for chunk in chunks]),
            replay_starts=rows([chunk.replay_start for chunk in chunks]),
            page_table=torch.tensor([table + [0] * (width - len(table)) for table in pages]),
            sample_rows=torch.from_numpy(kept) if compact else torch.arange(starts[-1]),
            query_start=starts,
            max_position=max(chunk.end for chunk in chunks) - 1,
            kept=KeptRows(torch.from_numpy(kept), first, kept_start.tolist()) if compact else None,
        )
        logits = self._model.forward(inputs, self.caches)
        return list(logits.split(kept_counts.tolist() if compact else counts))

    def in_chunks(
        self,
        tokens: list[int],
        size: int,
        slot: int,
        pages: list[int],
        replay_start: int = 0,
        compact: bool = False,
    ) -> torch.Tensor:
        """Logits [len(tokens), V] of one sequence, `size` rows a step; with compact of the kept rows only."""
        parts = []
        for start in range(0, len(tokens), size):
            end = min(start + size, len(tokens))
            parts += self.run([Chunk(tokens, start, end, slot, pages, replay_start)], compact)
        return torch.cat(parts)

    def propose(self, anchors: list[tuple[int, int, int]], replay_start: int = 0) -> Draft:
        """Greedy drafts from (token, position, slot) anchors."""
        tokens, positions, slots = (torch.tensor(column) for column in zip(*anchors, strict=True))
        where = Anchors(tokens, positions, slots, torch.full_like(tokens, replay_start))
        return self._model.propose(where, self.caches, lambda logits, _: logits.argmax(dim=-1))

    def poison(self, slots: list[int], pages: list[int]) -> None:
        """Fill slots and pages with bytes that decode to NaN where the format has one."""
        self.caches.poison(torch.tensor(slots), torch.tensor(pages))
