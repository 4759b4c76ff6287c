"""`ModelConfig`: what a config.json says, checked, and the layer map that follows from it.

It knows both released layouts (config.json and inference/config.json) and nothing about tensors or devices.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reference.spec import config_fields, config_laws, config_layouts, json_file
from reference.spec.errors import ConfigError, shown


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """YaRN of the layers with a compress ratio above 0 (V4.1 model specification §4.1)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """The vision tower's numbers. Only the tensor plan uses them: the text engine loads no vision tensor."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The configuration of a DeepSeek-V4.1 model, under the released names (V4.1 model specification §1.1).

    Construction checks the type of every field and every law between fields, so an instance is always consistent.

    quantized: the checkpoint holds FP8 32x32 linears and packed FP4 experts with UE8M0 scales, and linears quantise
        their input; False means BF16 linears and experts (the Engram tables are FP8 either way).
    vision: None means that no vision, aligner, image or gate.bias_vl tensor exists.

    Raises:
        ConfigError: names the field, its value and the law.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    moe_intermediate_size: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    n_routed_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    index_n_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    n_shared_experts: int = 1
    norm_topk_prob: bool = True
    candidate_source_layer_id: int | None = None
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 0
    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    engram_max_ngram_size: int = 0
    engram_vocab_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 2
    engram_compressed_vocab_size: int = 0
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    bos_token_id: int = 0
    eos_token_id: int = 1
    pad_token_id: int = 2
    image_token_id: int | None = None
    rope_scaling: RopeScaling | None = None
    vision: VisionConfig | None = None
    quantized: bool = True

    def __post_init__(self) -> None:
        for field in config_fields.TEXT_FIELDS + config_fields.ROOT_FIELDS:
            typed = config_fields.typed(field.name, field.kind, getattr(self, field.name))
            object.__setattr__(self, field.name, typed)
        if type(self.quantized) is not bool:
            raise ConfigError(f"config field quantized = {shown(self.quantized)}: must be bool")
        config_laws.check(self)

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> "ModelConfig":
        """Read the released layout (root and text_config) or the flat one of inference/config.json."""
        values = config_layouts.read(source)
        if values["rope_scaling"] is not None:
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        if values["vision"] is not None:
            values["vision"] = VisionConfig(**values["vision"])
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> "ModelConfig":
        """Read a config.json, or the one inside a folder."""
        path = Path(path)
        path = path / "config.json" if os.path.isdir(path) else path
        try:
            source = json_file.read_object(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read as a configuration: {error}") from error
        try:
            return cls.from_dict(source)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The released layout, such that `from_dict(to_dict())` equals this configuration."""
        return config_layouts.write(self)

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed KV and index keys this layer reads; None for ratio 0 and draft layers."""
        return self._source(self.kv_source_layer_ids, layer)

    def index_source(self, layer: int) -> int | None:
        """The layer whose selection this layer attends to; None for ratio 0 and draft layers."""
        return self._source(self.index_source_layer_ids, layer)

    def _source(self, sources: tuple[int, ...], layer: int) -> int | None:
        if layer >= self.num_hidden_layers or self.compress_ratios[layer] == 0:
            return None
        return max((source for source in sources if source <= layer), default=None)

    def is_kv_source(self, layer: int) -> bool:
        """Whether the layer owns a compressor, a compressed cache and index keys."""
        return layer in self.kv_source_layer_ids

    def is_index_source(self, layer: int) -> bool:
        """Whether the layer owns index queries and makes a selection of its own."""
        return layer in self.index_source_layer_ids

    def uses_candidates(self, layer: int) -> bool:
        """Whether the layer selects inside the candidate source's blocks (the source itself does not)."""
        source = self.candidate_source_layer_id
        if source is None or not self.is_index_source(layer) or layer <= source:
            return False
        return self.kv_source(layer) == source

    @property
    def decoder_start(self) -> int:
        """The last KV source: rows dropped by replay run no further than this layer's stores. 0 without sources."""
        return self.kv_source_layer_ids[-1] if self.kv_source_layer_ids else 0

    @property
    def engram_columns(self) -> int:
        """Hash columns per token and Engram layer: n-gram sizes 2..max times heads."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads if self.engram_layer_ids else 0

    @property
    def has_draft(self) -> bool:
        """Whether the checkpoint holds DSpark blocks."""
        return self.num_nextn_predict_layers > 0
