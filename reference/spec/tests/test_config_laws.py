"""Each law of the configuration, by a configuration that breaks it and nothing else."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from reference.spec import ConfigError, ModelConfig
from reference.spec.config_fields import REQUIRED, TEXT_FIELDS
from reference.spec.tests.released import CONFIG, FLAT_CONFIG

RATIOS = CONFIG["text_config"]["compress_ratios"]

# field -> list of (value, what the message must say besides the field). Dots enter nested objects; the root is "/".
BROKEN: list[tuple[str, Any, str]] = [
    ("vocab_size", 0, "1..2147483647"),
    ("vocab_size", True, "int"),
    ("vocab_size", "129280", "int"),
    ("vocab_size", 129280.0, "int"),
    ("hidden_size", 5120 + 16, "multiple of 32"),
    ("hidden_size", 10**400, "1..2147483647"),
    ("num_hidden_layers", 39, "must have num_hidden_layers + num_nextn_predict_layers = 42 entries, has 43"),
    ("num_hidden_layers", 10**9, "65536"),
    ("num_attention_heads", 60, "must divide num_attention_heads = 60"),
    ("head_dim", 520, "blocks of 32"),
    ("qk_rope_head_dim", 63, "pairs"),
    ("qk_rope_head_dim", 514, "head_dim = 512"),
    ("qk_rope_head_dim", 130, "index_head_dim = 128"),
    ("q_lora_rank", 1281, "multiple of 32"),
    ("o_lora_rank", 1023, "multiple of 32"),
    ("o_groups", 7, "must divide num_attention_heads = 64"),
    ("moe_intermediate_size", 2300, "multiple of 32"),
    ("swiglu_limit", 0, "above 0"),
    ("swiglu_limit", "10", "finite number"),
    ("rms_norm_eps", -1e-6, "negative"),
    ("rms_norm_eps", None, "finite number"),
    ("sliding_window", 0, "1.."),
    ("rope_theta", 0, "above 0"),
    ("compress_rope_theta", float("nan"), "finite number"),
    ("compress_rope_theta", 10**400, "finite number"),
    ("rope_scaling.rope_type", "llama3", "only 'yarn'"),
    ("rope_scaling.factor", 0.5, "at least 1"),
    ("rope_scaling.factor", True, "finite number"),
    ("rope_scaling.beta_fast", 0.5, "beta_slow = 1"),
    ("rope_scaling.original_max_position_embeddings", 0, "1.."),
    ("rope_scaling", "yarn", "object"),
    ("n_routed_experts", 5, "n_routed_experts = 5"),
    ("n_shared_experts", 2, "only 1"),
    ("norm_topk_prob", 1, "bool"),
    ("routed_scaling_factor", -1.5, "above 0"),
    ("compress_ratios", [*RATIOS[:-1], 1], "draft layers must have ratio 0"),
    ("compress_ratios", [-1, *RATIOS[1:]], "every ratio"),
    ("compress_ratios", [0, 0, 2, 1, *RATIOS[4:]], "layer 3 has ratio 1, but its kv source, layer 2 "),
    ("compress_ratios", [0, 2, *RATIOS[2:]], "no kv source at or before it"),
    ("compress_ratios", [*RATIOS, 0], "has 44"),
    ("compress_ratios", [0.0, *RATIOS[1:]], "list of ints"),
    ("compress_ratios", 2, "list of ints"),
    ("kv_source_layer_ids", [2, 8, 14, 20, 40], "0..39"),
    ("kv_source_layer_ids", [8, 2, 14, 20], "ascending"),
    ("kv_source_layer_ids", [2, 2, 8, 14, 20], "ascending"),
    ("kv_source_layer_ids", [0, 2, 8, 14, 20], "layer 0 has compress_ratios[0] = 0"),
    ("kv_source_layer_ids", [2, 8, 14], "layer 20 has ratio 1, but its kv source, layer 14 "),
    ("kv_source_layer_ids", [2, 8, 14, 20, 22], "layer 22 of kv_source_layer_ids"),
    ("index_source_layer_ids", [2, 8, 14, 20, 24, -1], "0..39"),
    ("index_source_layer_ids", [2, 8, 20, 24, 28, 32, 36], "layer 14 of kv_source_layer_ids"),
    ("index_n_heads", 0, "1.."),
    ("index_head_dim", 136, "groups of 32"),
    ("index_topk", 16378, "= 16377 must be at least index_topk = 16378"),
    ("candidate_source_layer_id", 24, "kv_source_layer_ids"),
    ("candidate_source_layer_id", 14, "last kv source, layer 20"),
    ("candidate_topk_blocks", 64, "= 505 must be at least index_topk = 512"),
    ("candidate_block_size", 0, "1.."),
    ("hc_mult", 0, "1.."),
    ("hc_sinkhorn_iters", 0, "1.."),
    ("hc_eps", float("inf"), "finite number"),
    ("engram_layer_ids", [1, 40], "0..39"),
    ("engram_layer_ids", [1], "one entry for each"),
    ("engram_num_embeddings", [384006168, 384016683], "[384006168, 384016682]"),
    ("engram_max_ngram_size", 1, "2..64"),
    ("engram_n_heads", 9, "sums of the table primes"),
    ("engram_n_heads", 10**6, "1..1024"),
    ("engram_head_dim", 250, "multiple of 32"),
    ("engram_vocab_size", 16000058, "sums of the table primes"),
    ("engram_pad_token_id", 129280, "vocab_size = 129280"),
    ("engram_compressed_vocab_size", 129281, "vocab_size = 129280"),
    ("num_nextn_predict_layers", -1, "0..1024"),
    ("dspark_block_size", 0, "1.."),
    ("dspark_noise_token_id", 129280, "vocab_size"),
    ("dspark_target_layer_ids", [], "at least one"),
    ("dspark_target_layer_ids", [38, 39, 40], "0..39"),
    ("dspark_markov_rank", 0, "1.."),
    ("dspark_n_routed_experts", 2, "dspark_n_routed_experts = 2"),
    ("scoring_func", "sigmoid", "only 'sqrtsoftplus'"),
    ("topk_method", "greedy", "only 'noaux_tc'"),
    ("hidden_act", "gelu", "only 'silu'"),
    ("num_key_value_heads", 2, "only 1"),
    ("num_key_value_heads", True, "only 1"),
    ("attention_bias", True, "only False"),
    ("tie_word_embeddings", True, "only False"),
    ("gate_temp", 2.0, "only 1"),
    ("model_type", "deepseek_v4", "only 'deepseek_v41_text'"),
    ("/model_type", "llama", "only 'deepseek_v41'"),
    ("/text_config", [], "object"),
    ("/vision_config", 3, "object"),
    ("/vision_config.patch_size", 0, "1.."),
    ("/vision_config.downsample_ratio", 1000, "1..64"),
    ("/vision_config.hidden_size", "1024", "int"),
    ("/bos_token_id", 129280, "vocab_size"),
    ("/eos_token_id", [1], "int"),
    ("/image_token_id", 129280, "vocab_size"),
    ("/quantization_config", "fp8", "object"),
    ("/quantization_config.quant_method", "awq", "only 'fp8'"),
    ("/quantization_config.weight_block_size", [128, 128], "only [32, 32]"),
    ("/quantization_config.scale_fmt", "fp32", "only 'ue8m0'"),
    ("/quantization_config.expert_dtype", "fp8", "only 'fp4'"),
]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The released configuration with one field changed."""
    source = copy.deepcopy(CONFIG)
    parts = path[1:].split(".") if path.startswith("/") else ["text_config", *path.split(".")]
    inner = source
    for part in parts[:-1]:
        inner = inner[part]
    inner[parts[-1]] = value
    return source


@pytest.mark.ci
@pytest.mark.parametrize("path, value, says", BROKEN, ids=lambda item: None)
def test_refusal_names_field_value_and_law(path: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(changed(path, value))
    message = str(caught.value)
    assert says in message
    assert path.split(".")[-1].strip("/") in message


@pytest.mark.ci
@pytest.mark.parametrize("name", [field.name for field in TEXT_FIELDS if field.default is REQUIRED])
def test_missing_field_is_named(name: str) -> None:
    source = copy.deepcopy(CONFIG)
    del source["text_config"][name]
    with pytest.raises(ConfigError, match=f"text_config.{name} is missing"):
        ModelConfig.from_dict(source)


@pytest.mark.ci
def test_more_tables_than_can_be_walked_are_refused_at_once() -> None:
    source = changed("engram_n_heads", 1024)
    source["text_config"]["engram_max_ngram_size"] = 64
    with pytest.raises(ConfigError, match="makes 129024 tables in all, at most 16384"):
        ModelConfig.from_dict(source)


@pytest.mark.ci
def test_missing_field_points_at_its_misspelling() -> None:
    source = copy.deepcopy(CONFIG)
    source["text_config"]["swiglu_limt"] = source["text_config"].pop("swiglu_limit")
    with pytest.raises(ConfigError, match=r"swiglu_limit is missing: it is required; nearest is 'swiglu_limt'"):
        ModelConfig.from_dict(source)


@pytest.mark.ci
@pytest.mark.parametrize("layout", ["released", "flat"])
def test_no_value_ends_in_another_error_than_ours(layout: str) -> None:
    odd = [None, True, -1, 0, 3, 2**31, 10**5000, 1.5, float("nan"), float("inf"), "x", [], [None], ["a"], {}, {"a": 1}]
    base = CONFIG if layout == "released" else FLAT_CONFIG
    places: list[tuple[str, ...]] = [(key,) for key in base]
    places += [(key, inner) for key, value in base.items() if isinstance(value, dict) for inner in value]
    for place in places:
        for value in odd:
            source = copy.deepcopy(base)
            inner = source[place[0]] if len(place) == 2 else source
            inner[place[-1]] = value
            try:
                ModelConfig.from_dict(source)
            except ConfigError:
                continue


@pytest.mark.ci
@pytest.mark.parametrize("source", [None, 3, [], {1: 2}, {}, {"text_config": None}, {"text_config": {1: 2}}])
def test_what_is_no_configuration_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError):
        ModelConfig.from_dict(source)


@pytest.mark.ci
@pytest.mark.parametrize(
    "text, says",
    [
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": NaN}', "NaN"),
        ("[]", "list"),
        ("{", "Expecting"),
        ('{"a":' + "[" * 100000, "deep"),
        ("\udcff", "utf-8"),
    ],
)
def test_config_file_that_is_not_strict_json_is_refused_with_its_path(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=says) as caught:
        ModelConfig.from_file(tmp_path)
    assert str(path) in str(caught.value)


@pytest.mark.ci
def test_config_file_that_is_absent_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.json"):
        ModelConfig.from_file(tmp_path / "absent.json")


@pytest.mark.ci
def test_unread_field_is_logged_with_its_neighbour(caplog: pytest.LogCaptureFixture) -> None:
    ModelConfig.from_dict(changed("index_topkk", 512))
    assert "text_config.index_topkk is not read by anything; nearest is 'index_topk'" in caplog.text
    caplog.clear()
    ModelConfig.from_dict(json.loads(json.dumps(CONFIG)))
    assert caplog.text == ""
