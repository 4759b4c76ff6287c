"""The tensor plan: the name, dtype and shape of every tensor that a checkpoint of a configuration holds.

It knows the released names and layouts (V4.1 model specification §2); it reads no file.
Scale tensors stand beside their weight under the name `<stem>.scale`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig

Dtype = Literal["BF16", "F32", "F8_E4M3", "F8_E8M0", "I8"]
ITEM_BYTES: dict[str, int] = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
TILE = 32


class TensorSpec(NamedTuple):
    """One stored tensor. loaded: False for tensors that the text engine leaves on disk (vision)."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    loaded: bool = True

    @property
    def num_elements(self) -> int:
        """Stored elements (a packed FP4 byte is one)."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.num_elements * ITEM_BYTES[self.dtype]

    @property
    def num_parameters(self) -> int:
        """Parameters held: 2 for a packed FP4 byte, 0 for a scale."""
        return {"I8": 2, "F8_E8M0": 0}.get(self.dtype, 1) * self.num_elements

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the decoded values: packed FP4 has twice the columns."""
        return (*self.shape[:-1], 2 * self.shape[-1]) if self.dtype == "I8" else self.shape

    @property
    def is_table(self) -> bool:
        """Whether this is an Engram table: one scale for 32 channels of a row, not for a 32x32 tile."""
        return self.name.endswith(".engram.embed.weight")

    @property
    def scale_name(self) -> str | None:
        """Name of the scale tensor that gives this one its values; None when it needs none."""
        return self.name.removesuffix(".weight") + ".scale" if self.dtype in ("F8_E4M3", "I8") else None


def tensor_plan(config: "ModelConfig") -> dict[str, TensorSpec]:
    """Every tensor of a checkpoint, by released name: no more and no fewer.

    Returns:
        name -> TensorSpec, backbone first, then draft blocks, then vision.
    """
    return {spec.name: spec for spec in _all(config)}


def _all(config: "ModelConfig") -> Iterator[TensorSpec]:
    dim, vocab = config.hidden_size, config.vocab_size
    yield TensorSpec("embed.weight", "BF16", (vocab, dim))
    yield TensorSpec("head.weight", "BF16", (vocab, dim))
    yield TensorSpec("norm.weight", "BF16", (dim,))
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        yield from _block(config, prefix, config.n_routed_experts)
        if config.is_kv_source(layer):
            yield from _compressor(config, prefix + "attn.", config.compress_ratios[layer])
        if config.is_index_source(layer):
            yield from _index_queries(config, prefix + "attn.indexer.")
    for layer, rows in zip(config.engram_layer_ids, config.engram_num_embeddings, strict=True):
        yield from _engram(config, f"layers.{layer}.engram.", rows)
    yield from _draft(config)
    yield from _vision(config)


def _linear(config: "ModelConfig", stem: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    """A dense linear [rows, columns]: FP8 with one scale for a 32x32 tile, or BF16 in an unquantised checkpoint."""
    if not config.quantized:
        yield TensorSpec(stem + ".weight", "BF16", (rows, columns))
        return
    yield TensorSpec(stem + ".weight", "F8_E4M3", (rows, columns))
    yield TensorSpec(stem + ".scale", "F8_E8M0", (-(-rows // TILE), columns // TILE))


def _expert_linear(config: "ModelConfig", stem: str, rows: int, columns: int) -> Iterator[TensorSpec]:
    """A routed expert's linear: two E2M1 codes a byte with one scale for 32 columns of a row, or BF16."""
    if not config.quantized:
        yield TensorSpec(stem + ".weight", "BF16", (rows, columns))
        return
    yield TensorSpec(stem + ".weight", "I8", (rows, columns // 2))
    yield TensorSpec(stem + ".scale", "F8_E8M0", (rows, columns // TILE))


def _block(config: "ModelConfig", prefix: str, experts: int) -> Iterator[TensorSpec]:
    dim, copies = config.hidden_size, config.hc_mult
    mixes = copies * (2 + copies)
    for part in ("attn", "ffn"):
        yield TensorSpec(f"{prefix}{part}_norm.weight", "BF16", (dim,))
        yield TensorSpec(f"{prefix}hc_{part}_fn", "F32", (mixes, copies * dim))
        yield TensorSpec(f"{prefix}hc_{part}_base", "F32", (mixes,))
        yield TensorSpec(f"{prefix}hc_{part}_scale", "F32", (3,))
    yield from _attention(config, prefix + "attn.")
    yield from _moe(config, prefix + "ffn.", experts)


def _attention(config: "ModelConfig", prefix: str) -> Iterator[TensorSpec]:
    dim, head_dim, heads = config.hidden_size, config.head_dim, config.num_attention_heads
    out_rank = config.o_groups * config.o_lora_rank
    yield from _linear(config, prefix + "wq_a", config.q_lora_rank, dim)
    yield TensorSpec(prefix + "q_norm.weight", "BF16", (config.q_lora_rank,))
    yield from _linear(config, prefix + "wq_b", heads * head_dim, config.q_lora_rank)
    yield from _linear(config, prefix + "wkv", head_dim, dim)
    yield TensorSpec(prefix + "kv_norm.weight", "BF16", (head_dim,))
    yield TensorSpec(prefix + "attn_sink", "F32", (heads,))
    yield from _linear(config, prefix + "wo_a", out_rank, heads * head_dim // config.o_groups)
    yield from _linear(config, prefix + "wo_b", dim, out_rank)


def _compressor(config: "ModelConfig", prefix: str, ratio: int) -> Iterator[TensorSpec]:
    dim, head_dim, index_dim = config.hidden_size, config.head_dim, config.index_head_dim
    yield TensorSpec(prefix + "compressor.wkv.weight", "BF16", (head_dim, dim))
    if ratio > 1:
        yield TensorSpec(prefix + "compressor.wgate.weight", "BF16", (head_dim, dim))
    yield TensorSpec(prefix + "compressor.norm.weight", "BF16", (head_dim,))
    yield TensorSpec(prefix + "indexer.wk.weight", "BF16", (index_dim, head_dim))
    yield TensorSpec(prefix + "indexer.k_norm.weight", "BF16", (index_dim,))


def _index_queries(config: "ModelConfig", prefix: str) -> Iterator[TensorSpec]:
    yield from _linear(config, prefix + "wq_b", config.index_n_heads * config.index_head_dim, config.q_lora_rank)
    yield TensorSpec(prefix + "weights_proj.weight", "BF16", (config.index_n_heads, config.hidden_size))


def _moe(config: "ModelConfig", prefix: str, experts: int) -> Iterator[TensorSpec]:
    dim, width = config.hidden_size, config.moe_intermediate_size
    yield TensorSpec(prefix + "gate.weight", "BF16", (experts, dim))
    yield TensorSpec(prefix + "gate.bias", "F32", (experts,))
    if config.vision is not None:
        # The text engine routes no image token, and so never reads this one.
        yield TensorSpec(prefix + "gate.bias_vl", "F32", (experts,), loaded=False)
    for expert in range(experts):
        stem = f"{prefix}experts.{expert}."
        yield from _expert_linear(config, stem + "w1", width, dim)
        yield from _expert_linear(config, stem + "w2", dim, width)
        yield from _expert_linear(config, stem + "w3", width, dim)
    yield from _linear(config, prefix + "shared_experts.w1", width, dim)
    yield from _linear(config, prefix + "shared_experts.w2", dim, width)
    yield from _linear(config, prefix + "shared_experts.w3", width, dim)


def _engram(config: "ModelConfig", prefix: str, rows: int) -> Iterator[TensorSpec]:
    dim, copies, width = config.hidden_size, config.hc_mult, config.engram_head_dim
    yield TensorSpec(prefix + "embed.weight", "F8_E4M3", (rows, width))
    yield TensorSpec(prefix + "embed.scale", "F8_E8M0", (rows, width // TILE))
    yield from _linear(config, prefix + "wkv", dim * (copies + 1), config.engram_columns * width)
    yield TensorSpec(prefix + "q_weight", "BF16", (copies, dim))
    yield TensorSpec(prefix + "k_weight", "BF16", (copies, dim))


def _draft(config: "ModelConfig") -> Iterator[TensorSpec]:
    if not config.has_draft:
        return
    dim, vocab, rank = config.hidden_size, config.vocab_size, config.dspark_markov_rank
    blocks = config.num_nextn_predict_layers
    for block in range(blocks):
        yield from _block(config, f"mtp.{block}.", config.dspark_n_routed_experts)
    last = f"mtp.{blocks - 1}."
    yield from _linear(config, "mtp.0.main_proj", dim, len(config.dspark_target_layer_ids) * dim)
    yield TensorSpec("mtp.0.main_norm.weight", "BF16", (dim,))
    yield TensorSpec(last + "norm.weight", "BF16", (dim,))
    yield TensorSpec(last + "markov_head.embed.weight", "BF16", (vocab, rank))
    yield TensorSpec(last + "markov_head.head.weight", "BF16", (vocab, rank))
    yield TensorSpec(last + "confidence_head.proj.weight", "BF16", (1, dim + rank))


def _vision(config: "ModelConfig") -> Iterator[TensorSpec]:
    if config.vision is None:
        return
    for name, shape in _vision_shapes(config):
        yield TensorSpec(name, "BF16", shape, loaded=False)


def _vision_shapes(config: "ModelConfig") -> Iterator[tuple[str, tuple[int, ...]]]:
    vision, dim = config.vision, config.hidden_size
    if vision is None:
        return
    for name in ("image_start", "image_end", "image_newline"):
        yield name, (dim,)
    width, inner = vision.hidden_size, vision.intermediate_size
    yield "vision.patch_embed.proj.weight", (width, 3 * vision.patch_size**2)
    yield "vision.patch_embed.proj.bias", (width,)
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        yield prefix + "attn.wqkv.weight", (3 * width, width)
        yield prefix + "attn.wqkv.bias", (3 * width,)
        yield prefix + "attn.wo.weight", (width, width)
        yield prefix + "attn.wo.bias", (width,)
        yield prefix + "mlp.w1.weight", (2 * inner, width)
        yield prefix + "mlp.w2.weight", (width, inner)
        yield prefix + "norm1.weight", (width,)
        yield prefix + "norm2.weight", (width,)
    yield "vision.norm.weight", (width,)
    yield "aligner.w1.weight", (dim, width * vision.downsample_ratio**2)
    yield "aligner.w1.bias", (dim,)
    yield "aligner.w2.weight", (dim, dim)
    yield "aligner.w2.bias", (dim,)
