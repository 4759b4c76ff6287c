"""The released configuration yields the released checkpoint: names, shapes, counts, hash constants, layer map."""

import dataclasses

import pytest

from reference.spec import ConfigError, ModelConfig
from reference.spec.engram import EngramLayout, is_prime
from reference.spec.tensors import tensor_plan
from reference.spec.tests.released import CONFIG, FLAT_CONFIG

pytestmark = pytest.mark.ci

PLAN_SAMPLES = {
    "embed.weight": ("BF16", (129280, 5120)),
    "image_newline": ("BF16", (5120,)),
    "layers.0.hc_attn_fn": ("F32", (24, 20480)),
    "layers.39.hc_ffn_scale": ("F32", (3,)),
    "layers.7.attn.wq_b.weight": ("F8_E4M3", (32768, 1280)),
    "layers.7.attn.wq_b.scale": ("F8_E8M0", (1024, 40)),
    "layers.0.attn.wo_a.weight": ("F8_E4M3", (8192, 4096)),
    "layers.0.attn.wo_a.scale": ("F8_E8M0", (256, 128)),
    "layers.14.attn.compressor.wgate.weight": ("BF16", (512, 5120)),
    "layers.20.attn.compressor.wkv.weight": ("BF16", (512, 5120)),
    "layers.20.attn.indexer.wk.weight": ("BF16", (128, 512)),
    "layers.36.attn.indexer.wq_b.scale": ("F8_E8M0", (128, 40)),
    "layers.36.attn.indexer.weights_proj.weight": ("BF16", (32, 5120)),
    "layers.5.ffn.experts.383.w1.weight": ("I8", (2304, 2560)),
    "layers.5.ffn.experts.383.w2.scale": ("F8_E8M0", (5120, 72)),
    "layers.5.ffn.shared_experts.w2.scale": ("F8_E8M0", (160, 72)),
    "layers.5.ffn.gate.bias_vl": ("F32", (384,)),
    "layers.14.engram.embed.scale": ("F8_E8M0", (384016682, 8)),
    "layers.1.engram.wkv.weight": ("F8_E4M3", (25600, 6144)),
    "mtp.0.main_proj.scale": ("F8_E8M0", (160, 480)),
    "mtp.1.ffn.gate.weight": ("BF16", (128, 5120)),
    "mtp.2.markov_head.head.weight": ("BF16", (129280, 256)),
    "mtp.2.confidence_head.proj.weight": ("BF16", (1, 5376)),
    "vision.blocks.31.mlp.w1.weight": ("BF16", (5632, 1024)),
    "aligner.w1.weight": ("BF16", (5120, 9216)),
}
ABSENT = [
    "layers.20.attn.compressor.wgate.weight",
    "layers.24.attn.indexer.wk.weight",
    "layers.3.attn.indexer.wq_b.weight",
    "layers.0.engram.q_weight",
    "mtp.1.norm.weight",
    "mtp.1.main_proj.weight",
    "layers.40.attn_norm.weight",
]


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_dict(CONFIG)


def test_plan_has_exactly_the_released_names_and_parameters(config: ModelConfig) -> None:
    plan = tensor_plan(config)
    draft = [spec for name, spec in plan.items() if name.startswith("mtp.")]
    tables = [spec for name, spec in plan.items() if ".engram.embed." in name]
    parameters = [sum(spec.num_parameters for spec in part) for part in (plan.values(), tables, draft)]
    assert len(plan) == 96_085
    assert len(draft) == 2_401
    assert sum(name.startswith(("vision.", "aligner.")) for name in plan) == 263
    assert parameters[1:] == [196_613_849_600, 14_225_362_530]
    assert parameters[0] - sum(parameters[1:]) == 552_366_103_664
    assert sum(spec.num_bytes for spec in plan.values()) == 510_286_023_000


def test_plan_has_the_released_shapes_and_dtypes(config: ModelConfig) -> None:
    plan = tensor_plan(config)
    assert {name: (plan[name].dtype, plan[name].shape) for name in PLAN_SAMPLES} == PLAN_SAMPLES
    assert not [name for name in ABSENT if name in plan]


def test_only_what_images_need_is_left_unloaded(config: ModelConfig) -> None:
    unloaded = [name for name, spec in tensor_plan(config).items() if not spec.loaded]
    vision = [name for name in unloaded if name.startswith(("vision.", "aligner.", "image_"))]
    assert len(vision) == 266
    assert all(name.endswith(".gate.bias_vl") for name in set(unloaded) - set(vision))
    assert len(unloaded) == 266 + 43
    text_only = dataclasses.replace(config, vision=None)
    assert tensor_plan(text_only).keys() == tensor_plan(config).keys() - set(unloaded)


def test_both_released_layouts_are_one_configuration(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(FLAT_CONFIG) == config
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert dataclasses.replace(config) == config


def test_contradicting_names_of_one_field_are_refused() -> None:
    with pytest.raises(ConfigError, match="dim = 1024: hidden_size says 5120"):
        ModelConfig.from_dict({**FLAT_CONFIG, "hidden_size": 5120, "dim": 1024})


def test_layer_map_is_the_released_one(config: ModelConfig) -> None:
    assert [config.kv_source(layer) for layer in (0, 1, 2, 7, 8, 13, 14, 19, 20, 39, 40)] == [
        *(None, None, 2, 2, 8, 8, 14, 14, 20, 20, None)
    ]
    assert [config.index_source(layer) for layer in (1, 7, 19, 23, 24, 27, 39)] == [None, 2, 14, 20, 24, 24, 36]
    assert [layer for layer in range(43) if config.uses_candidates(layer)] == [24, 28, 32, 36]
    assert [layer for layer in range(43) if config.is_kv_source(layer)] == [2, 8, 14, 20]
    assert (config.decoder_start, config.engram_columns) == (20, 24)


def test_engram_constants_are_the_released_ones(config: ModelConfig) -> None:
    first, second = EngramLayout.of(config).layers
    ends = [57, 79, 81, 97, 121, 129, 133, 183, 189, 207, 211, 253, 277, 289, 307, 321]
    assert [prime - 16_000_000 for prime in first.flat_primes[:16]] == ends
    assert second.primes[0][0] == 16_000_477
    assert second.primes[2][7] == 16_000_889
    assert first.offsets[0][:2] == (0, 16_000_057)
    assert int(second.flat_offsets[-1] + second.flat_primes[-1]) == 384_016_682 == second.num_embeddings
    assert first.multipliers.tolist() == [76632096046245, 4839876093313, 35959672319349, 73987337458391]
    assert second.multipliers.tolist() == [67716810739261, 51510806800915, 30921347202721, 82619226485591]
    assert EngramLayout.of(config).of_layer(14) is not None


def test_primality_is_exact() -> None:
    sieve = [number for number in range(2, 2000) if all(number % other for other in range(2, int(number**0.5) + 1))]
    assert [number for number in range(2000) if is_prime(number)] == sieve
    strong_pseudoprimes = [2047, 1373653, 25326001, 3215031751, 3825123056546413051]
    assert not any(is_prime(number) for number in strong_pseudoprimes)
    assert is_prime(2**61 - 1)
