"""Turn either released layout into field values, and field values back into the released layout.

It knows where a field stands; it does not know what the values mean together.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reference.spec import config_fields
from reference.spec.config_fields import (
    FIXED_QUANTIZATION,
    FIXED_VALUES,
    ROOT_FIELDS,
    ROPE_FIELDS,
    TEXT_FIELDS,
    VISION_FIELDS,
)
from reference.spec.errors import ConfigError, shown

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig

# inference/config.json does not say it.
RELEASED_IMAGE_TOKEN_ID = 129264


def read(source: Mapping[str, Any]) -> dict[str, Any]:
    """Field values of a configuration in either layout; `rope_scaling` and `vision` are dicts or None.

    Raises:
        ConfigError: a field is missing, mistyped, contradicted or fixed to another value.
    """
    source = _string_keys("", source)
    values = _read_released(source) if "text_config" in source else _read_flat(source)
    if values["max_position_embeddings"] is None:
        values["max_position_embeddings"] = _trained_context(values["rope_scaling"])
    return values


def _trained_context(rope_scaling: Mapping[str, Any] | None) -> int:
    if rope_scaling is None:
        raise ConfigError("config field max_position_embeddings is missing: it is required without rope_scaling")
    factor, original = rope_scaling["factor"], rope_scaling["original_max_position_embeddings"]
    limit = config_fields.MAX_INT
    if not (0 < original <= limit and 0 < factor <= limit / original):
        law = f"factor = {factor} times it must be in 1..{limit}"
        raise ConfigError(f"config field original_max_position_embeddings = {shown(original)}: {law}")
    return int(factor * original)


def _mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    return None if source.get(key) is None else _string_keys(f" field {key}", source[key])


def _string_keys(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"config{where} = {shown(value)}: must be a JSON object")
    return value


def _read_released(source: Mapping[str, Any]) -> dict[str, Any]:
    text = _mapping(source, "text_config")
    if text is None:
        raise ConfigError("config field text_config = None: must be a JSON object")
    for where, model_type in (("", "deepseek_v41"), ("text_config.", "deepseek_v41_text")):
        found = (text if where else source).get("model_type", model_type)
        if found != model_type:
            raise ConfigError(f"config field {where}model_type = {shown(found)}: only {model_type!r} is implemented")
    config_fields.check_fixed(text, "text_config.", flat=False)
    values = config_fields.read_fields(TEXT_FIELDS, text, "text_config.", flat=False)
    # Token ids stand at the root; some writers repeat them inside text_config.
    root = {**{field.name: text[field.name] for field in ROOT_FIELDS if field.name in text}, **source}
    values |= config_fields.read_fields(ROOT_FIELDS, root, "", flat=False)
    values["rope_scaling"] = _released_rope_scaling(text)
    vision = _mapping(source, "vision_config")
    values["vision"] = None
    if vision is not None:
        values["vision"] = config_fields.read_fields(VISION_FIELDS, vision, "vision_config.", flat=False)
    values["quantized"] = _released_quantization(source)
    known = {field.name for field in TEXT_FIELDS} | {name for name, _, _ in FIXED_VALUES} | {"rope_scaling"}
    tokens = {field.name for field in ROOT_FIELDS}
    config_fields.warn_unknown(text, known | tokens, "text_config.")
    config_fields.warn_unknown(source, tokens | {"text_config", "vision_config", "quantization_config"}, "")
    return values


def _released_rope_scaling(text: Mapping[str, Any]) -> dict[str, Any] | None:
    scaling = _mapping(text, "rope_scaling")
    if scaling is None:
        return None
    rope_type = scaling.get("rope_type", scaling.get("type"))
    if rope_type != "yarn":
        raise ConfigError(f"config field rope_scaling.rope_type = {shown(rope_type)}: only 'yarn' is implemented")
    return config_fields.read_fields(ROPE_FIELDS, scaling, "rope_scaling.", flat=False)


def _released_quantization(source: Mapping[str, Any]) -> bool:
    quantization = _mapping(source, "quantization_config")
    if quantization is None:
        return False
    for key, only in FIXED_QUANTIZATION.items():
        found = quantization.get(key, only if key == "activation_scheme" else None)
        if found != only:
            raise ConfigError(f"config field quantization_config.{key} = {shown(found)}: only {only!r} is implemented")
    config_fields.warn_unknown(quantization, set(FIXED_QUANTIZATION), "quantization_config.")
    return True


def _read_flat(source: Mapping[str, Any]) -> dict[str, Any]:
    config_fields.check_fixed(source, "", flat=True)
    values = config_fields.read_fields(TEXT_FIELDS + ROOT_FIELDS, source, "", flat=True)
    values["rope_scaling"] = None
    if source.get("original_seq_len", 0) != 0:
        values["rope_scaling"] = config_fields.read_fields(ROPE_FIELDS, source, "", flat=True)
    vision_names = {field.flat for field in VISION_FIELDS}
    values["vision"] = None
    if source.get("vision_n_layers", 0) != 0:
        flat = {field.name: source[field.flat] for field in VISION_FIELDS if field.flat in source}
        values["vision"] = config_fields.read_fields(VISION_FIELDS, flat, "vision_", flat=False)
        if values["image_token_id"] is None:
            values["image_token_id"] = RELEASED_IMAGE_TOKEN_ID
    for key, only in (("expert_dtype", "fp4"), ("scale_fmt", "ue8m0")):
        if source.get(key, only) not in (only, None):
            raise ConfigError(f"config field {key} = {shown(source[key])}: only {only!r} is implemented")
    dtype = source.get("dtype", "fp8")
    if dtype not in ("fp8", "bf16", "bfloat16"):
        raise ConfigError(f"config field dtype = {shown(dtype)}: only 'fp8' and 'bf16' are implemented")
    values["quantized"] = dtype == "fp8"
    known = {name for field in TEXT_FIELDS + ROOT_FIELDS + ROPE_FIELDS for name in (field.name, field.flat)}
    known |= {name for fixed in FIXED_VALUES for name in fixed[:2]}
    config_fields.warn_unknown(source, known | vision_names, "")
    return values


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def write(config: "ModelConfig") -> dict[str, Any]:
    """The released layout of a configuration."""
    text: dict[str, Any] = {"model_type": "deepseek_v41_text"}
    text |= {field.name: _plain(getattr(config, field.name)) for field in TEXT_FIELDS}
    if config.candidate_source_layer_id is None:
        text["candidate_source_layer_id"] = -1
    text |= {name: only for name, _, only in FIXED_VALUES if name != "gate_temp"}
    text["rope_scaling"] = None
    if config.rope_scaling is not None:
        scaling = {field.name: getattr(config.rope_scaling, field.name) for field in ROPE_FIELDS}
        text["rope_scaling"] = {"rope_type": "yarn", **scaling}
    root: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "text_config": text,
    }
    if config.image_token_id is not None:
        root["image_token_id"] = config.image_token_id
    if config.vision is not None:
        vision = {field.name: getattr(config.vision, field.name) for field in VISION_FIELDS}
        root["vision_config"] = {"model_type": "deepseek_v41_vision", **vision}
    if config.quantized:
        root["quantization_config"] = {key: _plain(value) for key, value in FIXED_QUANTIZATION.items()}
    return root
