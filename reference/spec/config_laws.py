"""The laws between the fields of a configuration. It knows numbers only: no file, no tensor.

Every refusal names the field, its value and the law. Sources: V4.1 model specification §§1, 2, 4, 6, 7, 9.
"""

import itertools
from typing import TYPE_CHECKING, Any

from reference.spec.config_fields import MAX_INT
from reference.spec.engram import table_primes
from reference.spec.errors import ConfigError, shown

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig, VisionConfig

MAX_EXPERTS = 65536
MAX_TABLES = 16384


def require(holds: bool, field: str, value: Any, law: str) -> None:
    """Raise `ConfigError` naming field, value and law unless the law holds."""
    if not holds:
        plain = list(value) if isinstance(value, tuple) else value
        raise ConfigError(f"config field {field} = {shown(plain)}: {law}")


def _positive(config: "ModelConfig", *fields: str, limit: int = MAX_INT) -> None:
    for field in fields:
        value = getattr(config, field)
        require(1 <= value <= limit, field, value, f"must be in 1..{limit}")


def _multiple(field: str, value: int, of: int, reason: str) -> None:
    require(value % of == 0, field, value, f"must be a multiple of {of}: {reason}")


def _ascending_layers(config: "ModelConfig", field: str) -> None:
    layers, count = getattr(config, field), config.num_hidden_layers
    inside = all(0 <= layer < count for layer in layers)
    require(inside, field, layers, f"every layer must be in 0..{count - 1} (num_hidden_layers = {count})")
    ascending = all(low < high for low, high in itertools.pairwise(layers))
    require(ascending, field, layers, "must be strictly ascending")


def check(config: "ModelConfig") -> None:
    """Check every law.

    Raises:
        ConfigError: the first law that does not hold.
    """
    _check_sizes(config)
    _check_ratios(config)
    if config.kv_source_layer_ids or config.index_source_layer_ids:
        _check_index(config)
    _check_sources(config)
    _check_candidates(config)
    _check_tokens(config)
    _check_rope(config)
    _check_engram(config)
    _check_draft(config)
    if config.quantized:
        _check_quantized(config)
    if config.vision is not None:
        _check_vision(config.vision)


def _check_sizes(config: "ModelConfig") -> None:
    _positive(config, "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "qk_rope_head_dim")
    _positive(config, "q_lora_rank", "o_lora_rank", "o_groups", "moe_intermediate_size")
    _positive(config, "max_position_embeddings", "sliding_window", "hc_mult", "hc_sinkhorn_iters")
    _positive(config, "num_hidden_layers", "num_experts_per_tok", "n_routed_experts", limit=MAX_EXPERTS)
    for field in ("swiglu_limit", "rope_theta", "compress_rope_theta", "routed_scaling_factor"):
        require(getattr(config, field) > 0, field, getattr(config, field), "must be above 0")
    for field in ("rms_norm_eps", "hc_eps"):
        require(getattr(config, field) >= 0, field, getattr(config, field), "must not be negative")
    shared = config.n_shared_experts
    require(shared == 1, "n_shared_experts", shared, "only 1 is implemented: the layer has one shared expert")
    routed, top = config.n_routed_experts, config.num_experts_per_tok
    require(top <= routed, "num_experts_per_tok", top, f"must not exceed n_routed_experts = {routed}")
    _multiple("qk_rope_head_dim", config.qk_rope_head_dim, 2, "rotary channels come in pairs")
    law = f"must not exceed head_dim = {config.head_dim}"
    require(config.qk_rope_head_dim <= config.head_dim, "qk_rope_head_dim", config.qk_rope_head_dim, law)
    _multiple("head_dim", config.head_dim, 32, "window KV is quantised in blocks of 32")
    heads, groups = config.num_attention_heads, config.o_groups
    require(heads % groups == 0, "o_groups", groups, f"must divide num_attention_heads = {heads}")


def _check_ratios(config: "ModelConfig") -> None:
    ratios, draft = config.compress_ratios, config.num_nextn_predict_layers
    require(0 <= draft <= 1024, "num_nextn_predict_layers", draft, "must be in 0..1024")
    total = config.num_hidden_layers + draft
    law = f"must have num_hidden_layers + num_nextn_predict_layers = {total} entries, has {len(ratios)}"
    require(len(ratios) == total, "compress_ratios", ratios, law)
    inside = all(0 <= ratio <= MAX_INT for ratio in ratios)
    require(inside, "compress_ratios", ratios, f"every ratio must be in 0..{MAX_INT}")
    require(not any(ratios[config.num_hidden_layers :]), "compress_ratios", ratios, "draft layers must have ratio 0")


def _check_index(config: "ModelConfig") -> None:
    _positive(config, "index_n_heads", "index_head_dim", "index_topk")
    _multiple("index_head_dim", config.index_head_dim, 32, "index keys are quantised in groups of 32")
    law = f"must not exceed index_head_dim = {config.index_head_dim}"
    require(config.qk_rope_head_dim <= config.index_head_dim, "qk_rope_head_dim", config.qk_rope_head_dim, law)


def _check_sources(config: "ModelConfig") -> None:
    ratios = config.compress_ratios
    for field in ("kv_source_layer_ids", "index_source_layer_ids"):
        _ascending_layers(config, field)
        sources = getattr(config, field)
        for source in sources:
            law = f"layer {source} has compress_ratios[{source}] = 0, a source needs a ratio above 0"
            require(ratios[source] > 0, field, sources, law)
    kv_sources, index_sources = config.kv_source_layer_ids, config.index_source_layer_ids
    for source in kv_sources:
        law = f"must hold every kv source: layer {source} of kv_source_layer_ids = {list(kv_sources)} is missing"
        require(source in index_sources, "index_source_layer_ids", index_sources, law)
    for layer in range(config.num_hidden_layers):
        if ratios[layer] == 0:
            continue
        law = f"layer {layer} has compress_ratios[{layer}] = {ratios[layer]} and no kv source at or before it"
        require(any(source <= layer for source in kv_sources), "kv_source_layer_ids", kv_sources, law)
        source = max(source for source in kv_sources if source <= layer)
        law = (
            f"layer {layer} has ratio {ratios[layer]}, but its kv source, layer {source} "
            f"(kv_source_layer_ids = {list(kv_sources)}), has ratio {ratios[source]}"
        )
        require(ratios[source] == ratios[layer], "compress_ratios", ratios, law)


def _check_candidates(config: "ModelConfig") -> None:
    source = config.candidate_source_layer_id
    if source is None:
        return
    for field in ("kv_source_layer_ids", "index_source_layer_ids"):
        law = f"must be one of {field} = {list(getattr(config, field))}"
        require(source in getattr(config, field), "candidate_source_layer_id", source, law)
    last = config.kv_source_layer_ids[-1]
    law = f"must be the last kv source, layer {last}: its rows are the only ones that later layers select from"
    require(source == last, "candidate_source_layer_id", source, law)
    _positive(config, "candidate_topk_blocks", "candidate_block_size")
    blocks, size, top = config.candidate_topk_blocks, config.candidate_block_size, config.index_topk
    law = (
        f"candidate_topk_blocks * candidate_block_size - (candidate_block_size - 1) = {blocks * size - (size - 1)} "
        f"must be at least index_topk = {top} (candidate_block_size = {size})"
    )
    require(blocks * size - (size - 1) >= top, "candidate_topk_blocks", blocks, law)


def _check_tokens(config: "ModelConfig") -> None:
    for field in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        token = getattr(config, field)
        law = f"must be in 0..{config.vocab_size - 1} (vocab_size = {config.vocab_size})"
        require(token is None or 0 <= token < config.vocab_size, field, token, law)


def _check_rope(config: "ModelConfig") -> None:
    scaling = config.rope_scaling
    if scaling is None:
        return
    require(scaling.factor >= 1, "rope_scaling.factor", scaling.factor, "must be at least 1")
    require(scaling.beta_slow > 0, "rope_scaling.beta_slow", scaling.beta_slow, "must be above 0")
    law = f"must be at least beta_slow = {scaling.beta_slow}"
    require(scaling.beta_fast >= scaling.beta_slow, "rope_scaling.beta_fast", scaling.beta_fast, law)
    original = scaling.original_max_position_embeddings
    field = "rope_scaling.original_max_position_embeddings"
    require(1 <= original <= MAX_INT, field, original, f"must be in 1..{MAX_INT}")
    require(config.compress_rope_theta > 1, "compress_rope_theta", config.compress_rope_theta, "YaRN needs it above 1")


def _check_engram(config: "ModelConfig") -> None:
    layers, rows = config.engram_layer_ids, config.engram_num_embeddings
    _ascending_layers(config, "engram_layer_ids")
    law = f"must have one entry for each of engram_layer_ids = {list(layers)}"
    require(len(rows) == len(layers), "engram_num_embeddings", rows, law)
    if not layers:
        return
    _positive(config, "engram_head_dim", "engram_vocab_size", "engram_compressed_vocab_size")
    _positive(config, "engram_n_heads", limit=1024)
    ngram = config.engram_max_ngram_size
    require(2 <= ngram <= 64, "engram_max_ngram_size", ngram, "must be in 2..64")
    _multiple("engram_head_dim", config.engram_head_dim, 32, "table rows have one scale for 32 channels")
    pad, vocab = config.engram_pad_token_id, config.vocab_size
    require(0 <= pad < vocab, "engram_pad_token_id", pad, f"must be in 0..{vocab - 1} (vocab_size = {vocab})")
    law = f"must not exceed vocab_size = {vocab}"
    compressed = config.engram_compressed_vocab_size
    require(compressed <= vocab, "engram_compressed_vocab_size", compressed, law)
    columns = (ngram - 1) * config.engram_n_heads * len(layers)
    law = f"with engram_max_ngram_size = {ngram} makes {columns} tables in all, at most {MAX_TABLES} are accepted"
    require(columns <= MAX_TABLES, "engram_n_heads", config.engram_n_heads, law)
    primes = table_primes(len(layers), ngram, config.engram_n_heads, config.engram_vocab_size)
    sums = [sum(map(sum, sizes)) for sizes in primes]
    law = (
        f"must be {sums}, the sums of the table primes from engram_vocab_size = {config.engram_vocab_size} up "
        f"(engram_n_heads = {config.engram_n_heads}, engram_max_ngram_size = {ngram})"
    )
    require(list(rows) == sums, "engram_num_embeddings", rows, law)


def _check_draft(config: "ModelConfig") -> None:
    if not config.has_draft:
        return
    _positive(config, "dspark_block_size", "dspark_markov_rank")
    _positive(config, "dspark_n_routed_experts", "dspark_num_experts_per_tok", limit=MAX_EXPERTS)
    routed, top = config.dspark_n_routed_experts, config.dspark_num_experts_per_tok
    require(top <= routed, "dspark_num_experts_per_tok", top, f"must not exceed dspark_n_routed_experts = {routed}")
    noise, vocab = config.dspark_noise_token_id, config.vocab_size
    require(0 <= noise < vocab, "dspark_noise_token_id", noise, f"must be in 0..{vocab - 1} (vocab_size = {vocab})")
    targets = config.dspark_target_layer_ids
    require(len(targets) > 0, "dspark_target_layer_ids", targets, "a draft needs at least one target layer")
    _ascending_layers(config, "dspark_target_layer_ids")


def _check_quantized(config: "ModelConfig") -> None:
    reason = "FP8 and FP4 weights have one scale for 32 columns, FP8 ones for 32 rows too"
    for field in ("hidden_size", "q_lora_rank", "moe_intermediate_size"):
        _multiple(field, getattr(config, field), 32, reason)
    _multiple("o_groups * o_lora_rank", config.o_groups * config.o_lora_rank, 32, reason)


def _check_vision(vision: "VisionConfig") -> None:
    for field in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "patch_size"):
        value = getattr(vision, field)
        require(1 <= value <= MAX_EXPERTS, f"vision_config.{field}", value, f"must be in 1..{MAX_EXPERTS}")
    ratio = vision.downsample_ratio
    require(1 <= ratio <= 64, "vision_config.downsample_ratio", ratio, "must be in 1..64")
