"""What is written is read back, by us and by the safetensors library; what hubs do to a folder does no harm."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reference.checkpoint import load_checkpoint, save_checkpoint
from reference.spec import CheckpointError, VisionConfig
from reference.spec.checkpoint_files import CheckpointFiles
from reference.spec.tensors import TensorSpec, tensor_plan
from reference.tests.small_checkpoint import CONFIG, random_weights, write_small_checkpoint

pytestmark = pytest.mark.ci
VISION = VisionConfig(1, 32, 2, 64, 2, 10000.0, 3, 1024, 295936, None)


@pytest.mark.parametrize("quantized", [True, False], ids=["fp8_fp4", "bf16"])
@pytest.mark.parametrize("max_shard_bytes", [None, 1, 40_000, 10**9])
def test_round_trip_is_exact(tmp_path: Path, quantized: bool, max_shard_bytes: int | None) -> None:
    config = dataclasses.replace(CONFIG, quantized=quantized)
    first = load_checkpoint(write_small_checkpoint(tmp_path / "first", config))
    save_checkpoint(tmp_path / "second", config, first.weights, first.tokenizer_path, max_shard_bytes)
    second = load_checkpoint(tmp_path / "second")
    assert second.config == first.config == config
    assert second.weights.keys() == first.weights.keys()
    assert [name for name in first.weights if not torch.equal(first.weights[name], second.weights[name])] == []
    assert second.token_map is not None
    assert second.token_map.tolist() == [0, 1, 2, 3, 3, 4, 4, 5]


def test_values_are_the_ones_saved_up_to_their_format(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    loaded = load_checkpoint(write_small_checkpoint(tmp_path)).weights
    relative = {"F32": 0.0, "BF16": 2**-8, "F8_E4M3": 2**-4, "I8": 0.5}
    for name, spec in tensor_plan(CONFIG).items():
        if name in weights:
            bound = relative[spec.dtype] * weights[name].abs() + (2**-9 if spec.dtype == "F8_E4M3" else 0)
            bound = bound + (0.5 if spec.dtype == "I8" else 0)
            assert bool(((loaded[name] - weights[name]).abs() <= bound).all()), name


def test_safetensors_reads_what_we_write(tmp_path: Path) -> None:
    folder = write_small_checkpoint(tmp_path)
    theirs = load_file(folder / "model.safetensors")
    ours = CheckpointFiles.open(folder, CONFIG)
    assert theirs.keys() == set(ours.names())
    for name, tensor in theirs.items():
        assert tensor.view(torch.uint8).numpy().tobytes() == ours.read(name).tobytes()


def test_we_read_what_safetensors_writes(tmp_path: Path) -> None:
    folder = write_small_checkpoint(tmp_path)
    before = load_checkpoint(folder).weights
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    after = load_checkpoint(folder).weights
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_stored_bytes_are_views_of_the_file_and_cannot_be_written(tmp_path: Path) -> None:
    files = CheckpointFiles.open(write_small_checkpoint(tmp_path), CONFIG)
    values = files.read("layers.0.engram.embed.weight")
    assert values.base is not None
    assert not values.flags.writeable
    assert not values.flags.owndata


def test_hub_cache_of_symbolic_links_is_followed(tmp_path: Path) -> None:
    folder, snapshot = write_small_checkpoint(tmp_path / "blobs", max_shard_bytes=40_000), tmp_path / "snapshot"
    snapshot.mkdir()
    for path in folder.iterdir():
        os.symlink(path, snapshot / path.name)
    assert load_checkpoint(snapshot).weights.keys() == random_weights(CONFIG).keys()


def test_files_of_other_makers_in_the_folder_do_no_harm(tmp_path: Path) -> None:
    folder = write_small_checkpoint(tmp_path)
    (folder / "expected_official.safetensors").write_bytes(b"not even a header")
    (folder / "generation_config.json").write_text("{")
    assert load_checkpoint(folder).weights


@pytest.mark.parametrize("present", [True, False], ids=["with_vision", "without_vision"])
def test_vision_tensors_may_be_there_and_are_not_loaded(tmp_path: Path, present: bool) -> None:
    config = dataclasses.replace(CONFIG, vision=VISION)
    folder = write_small_checkpoint(tmp_path, config)
    vision = [spec for spec in tensor_plan(config).values() if not spec.loaded]
    if present:
        _add(folder, vision)
    assert load_checkpoint(folder).weights.keys() == random_weights(CONFIG).keys()
    assert {"vision.norm.weight", "layers.0.ffn.gate.bias_vl", "image_start"} <= {spec.name for spec in vision}


def test_vision_tensors_are_checked_where_they_are_present(tmp_path: Path) -> None:
    folder = write_small_checkpoint(tmp_path, dataclasses.replace(CONFIG, vision=VISION))
    _add(folder, [TensorSpec("vision.norm.weight", "BF16", (33,))])
    with pytest.raises(CheckpointError, match=r"vision\.norm\.weight.*\[33\], must be \[32\]"):
        load_checkpoint(folder)


def _add(folder: Path, specs: list[TensorSpec]) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    tensors |= {spec.name: torch.zeros(spec.shape, dtype=dtypes[spec.dtype]) for spec in specs}
    save_file(tensors, folder / "model.safetensors")


def test_saving_another_layout_replaces_the_earlier_one(tmp_path: Path) -> None:
    write_small_checkpoint(tmp_path, max_shard_bytes=40_000)
    write_small_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path).weights
    write_small_checkpoint(tmp_path, max_shard_bytes=80_000)
    assert load_checkpoint(tmp_path).weights
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    plan = tensor_plan(CONFIG)
    assert index["metadata"]["total_size"] == sum(spec.num_bytes for spec in plan.values())
    assert index["weight_map"].keys() == plan.keys()


def test_saving_refuses_what_could_not_be_loaded(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    spoiled = {
        "missing": {name: value for name, value in weights.items() if name != "norm.weight"},
        "not wanted": {**weights, "norm.weigth": weights["norm.weight"]},
        r"norm\.weight.*\[63\], must be \[64\]": {**weights, "norm.weight": torch.zeros(63)},
        r"norm\.weight.*NaN": {**weights, "norm.weight": torch.full((64,), float("nan"))},
        r"norm\.weight.*BF16": {**weights, "norm.weight": torch.full((64,), torch.finfo(torch.float32).max)},
    }
    for says, bad in spoiled.items():
        with pytest.raises(CheckpointError, match=says):
            save_checkpoint(tmp_path / "out", CONFIG, bad)
    assert not (tmp_path / "out").exists()
