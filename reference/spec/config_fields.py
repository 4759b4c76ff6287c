"""The fields of a configuration: their names in both released layouts, their types, their defaults.

It reads and types single values; the laws between fields live in `config_laws`.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from reference.spec.errors import ConfigError, nearest, shown

MAX_INT = 2**31 - 1
logger = logging.getLogger(__name__)


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


class Field(NamedTuple):
    """One field: its released name, its kind, its name in inference/config.json, and what absence means."""

    name: str
    kind: str  # "int", "float", "bool", "ints" or "layer" (an int, or -1 / null for none)
    flat: str
    default: Any = REQUIRED


def _same(kind: str, *names: str, default: Any = REQUIRED) -> tuple[Field, ...]:
    return tuple(Field(name, kind, name, default) for name in names)


TEXT_FIELDS: tuple[Field, ...] = (
    *_same("int", "vocab_size"),
    Field("hidden_size", "int", "dim"),
    Field("num_hidden_layers", "int", "n_layers"),
    Field("num_attention_heads", "int", "n_heads"),
    *_same("int", "head_dim"),
    Field("qk_rope_head_dim", "int", "rope_head_dim"),
    *_same("int", "q_lora_rank", "o_lora_rank", "o_groups"),
    Field("moe_intermediate_size", "int", "moe_inter_dim"),
    *_same("float", "swiglu_limit"),
    Field("rms_norm_eps", "float", "norm_eps"),
    Field("max_position_embeddings", "int", "max_seq_len", None),
    Field("sliding_window", "int", "window_size"),
    *_same("float", "rope_theta", "compress_rope_theta"),
    *_same("int", "n_routed_experts"),
    *_same("int", "n_shared_experts", default=1),
    Field("num_experts_per_tok", "int", "n_activated_experts"),
    *_same("bool", "norm_topk_prob", default=True),
    Field("routed_scaling_factor", "float", "route_scale"),
    *_same("ints", "compress_ratios"),
    Field("kv_source_layer_ids", "ints", "kv_source_layers"),
    Field("index_source_layer_ids", "ints", "index_source_layers"),
    *_same("int", "index_n_heads", "index_head_dim", "index_topk", default=0),
    Field("candidate_source_layer_id", "layer", "candidate_source_layer", None),
    *_same("int", "candidate_topk_blocks", "candidate_block_size", default=0),
    *_same("int", "hc_mult", "hc_sinkhorn_iters"),
    *_same("float", "hc_eps"),
    *_same("ints", "engram_layer_ids", "engram_num_embeddings", default=()),
    *_same("int", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads", "engram_head_dim", default=0),
    Field("engram_pad_token_id", "int", "engram_pad_id", 2),
    *_same("int", "engram_compressed_vocab_size", default=0),
    Field("num_nextn_predict_layers", "int", "n_mtp_layers", 0),
    *_same("int", "dspark_block_size", "dspark_noise_token_id", default=0),
    *_same("ints", "dspark_target_layer_ids", default=()),
    *_same("int", "dspark_markov_rank", "dspark_n_routed_experts", default=0),
    Field("dspark_num_experts_per_tok", "int", "dspark_n_activated_experts", 0),
)
ROOT_FIELDS: tuple[Field, ...] = (
    *_same("int", "bos_token_id", default=0),
    *_same("int", "eos_token_id", default=1),
    *_same("int", "pad_token_id", default=2),
    *_same("layer", "image_token_id", default=None),
)
ROPE_FIELDS: tuple[Field, ...] = (
    Field("factor", "float", "rope_factor"),
    *_same("float", "beta_fast", default=32),
    *_same("float", "beta_slow", default=1),
    Field("original_max_position_embeddings", "int", "original_seq_len"),
)
VISION_FIELDS: tuple[Field, ...] = (
    Field("num_hidden_layers", "int", "vision_n_layers"),
    Field("hidden_size", "int", "vision_dim"),
    Field("num_attention_heads", "int", "vision_n_heads"),
    Field("intermediate_size", "int", "vision_inter_dim"),
    Field("patch_size", "int", "vision_patch_size"),
    Field("rope_theta", "float", "vision_rope_theta", 10000),
    Field("downsample_ratio", "int", "vision_downsample_ratio"),
    Field("max_image_tokens", "int", "vision_max_n_token", 1024),
    Field("min_pixels", "int", "vision_min_pixels", 295936),
    Field("max_wh_ratio", "optional float", "vision_max_wh_ratio", None),
)

# Values that the architecture fixes: (released name, flat name, the only value implemented).
FIXED_VALUES: tuple[tuple[str, str, Any], ...] = (
    ("hidden_act", "hidden_act", "silu"),
    ("scoring_func", "score_func", "sqrtsoftplus"),
    ("topk_method", "topk_method", "noaux_tc"),
    ("num_key_value_heads", "num_key_value_heads", 1),
    ("attention_bias", "attention_bias", False),
    ("tie_word_embeddings", "tie_word_embeddings", False),
    ("gate_temp", "gate_temp", 1),
)
FIXED_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}

# Keys that carry no information about the text model.
IGNORED_KEYS = frozenset(
    (
        *("model_type", "architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
        *("initializer_range", "use_cache", "attention_dropout"),
        *("max_batch_size", "temperature", "scale_fmt", "expert_dtype"),
    )
)


def typed(where: str, kind: str, value: Any) -> Any:
    """Return value as the Python type of its kind.

    Raises:
        ConfigError: another type (a bool is no int, a string is no number), NaN or infinity.
    """
    if kind == "int" and type(value) is int:
        return value
    if kind == "layer" and (value is None or type(value) is int):
        return None if value == -1 else value
    if kind == "bool" and type(value) is bool:
        return value
    if kind == "optional float" and value is None:
        return None
    if kind in ("float", "optional float") and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    if kind == "ints" and isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return tuple(value)
    wanted = {"ints": "a list of ints", "layer": "an int, or -1 or null for none", "float": "a finite number"}
    raise ConfigError(f"config field {where} = {shown(value)}: must be {wanted.get(kind, kind)}")


def read_fields(fields: Iterable[Field], source: Mapping[str, Any], where: str, flat: bool) -> dict[str, Any]:
    """Read every field under its released name, or under its flat one as well if `flat`.

    Raises:
        ConfigError: a required field is missing, a field is given twice with two values, or has the wrong type.
    """
    values: dict[str, Any] = {}
    for field in fields:
        names = [field.name] + ([field.flat] if flat and field.flat != field.name else [])
        found = [name for name in names if name in source]
        if not found:
            if field.default is REQUIRED:
                hint = nearest(names[-1], source)
                raise ConfigError(f"config field {where}{names[-1]} is missing: it is required{hint}")
            values[field.name] = field.default
            continue
        value = typed(where + found[0], field.kind, source[found[0]])
        for other in found[1:]:
            if typed(where + other, field.kind, source[other]) != value:
                law = f"{found[0]} says {shown(value)}"
                raise ConfigError(f"config field {where}{other} = {shown(source[other])}: {law}")
        values[field.name] = value
    return values


def check_fixed(source: Mapping[str, Any], where: str, flat: bool) -> None:
    """Refuse by name every value of a fixed field other than the one that is implemented."""
    for name, flat_name, only in FIXED_VALUES:
        for key in {name, flat_name} if flat else {name}:
            if key in source and (type(source[key]) is bool) != (type(only) is bool):
                raise ConfigError(f"config field {where}{key} = {shown(source[key])}: only {only!r} is implemented")
            if key in source and source[key] != only:
                raise ConfigError(f"config field {where}{key} = {shown(source[key])}: only {only!r} is implemented")


def warn_unknown(source: Mapping[str, Any], known: set[str], where: str) -> None:
    """Log every key that nothing reads, with its nearest neighbour."""
    for key in source:
        if key not in known and key not in IGNORED_KEYS:
            logger.warning("config field %s%s is not read by anything%s", where, key, nearest(key, known))
