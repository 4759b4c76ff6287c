"""Read a checkpoint folder into plain float32 values, and write values back in the released layout and dtypes.

It knows names, formats and files. It knows nothing about how a layer uses a weight.
Source: V4.1 model specification §2.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reference import formats
from reference.spec.checkpoint_files import INDEX_NAME, SINGLE_NAME, CheckpointFiles
from reference.spec.config import ModelConfig
from reference.spec.errors import CheckpointError
from reference.spec.safetensors_file import write_file
from reference.spec.tensors import TensorSpec, tensor_plan
from reference.spec.token_map import checked_token_map

StoredTensor = tuple[str, str, tuple[int, ...], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    weights: float32 values by tensor name; scales are multiplied in and have no entry, packed FP4 is [N, K] again.
    token_map: int64 [len(tokenizer)], compressed Engram ids; None without Engram layers.
    tokenizer_path: the folder's tokenizer.json, or None.
    """

    config: ModelConfig
    weights: dict[str, Tensor]
    token_map: Tensor | None
    tokenizer_path: Path | None


def load_checkpoint(folder: str | Path) -> Checkpoint:
    """Read a local folder: config.json, model.safetensors or index and shards, tokenizer.json.

    Everything is verified before anything is returned. Vision tensors may be there; they are not loaded.

    Raises:
        ConfigError: config.json cannot be read or breaks a law.
        CheckpointError: a tensor or a file is not what the configuration asks for; names both.
    """
    folder = Path(folder)
    if not os.path.isdir(folder):  # a name too long is no folder either
        raise CheckpointError(f"{folder}: is not a folder")
    config = ModelConfig.from_file(folder / "config.json")
    files = CheckpointFiles.open(folder, config)
    tokenizer = folder / "tokenizer.json"
    token_map = None
    if config.engram_layer_ids:
        if not tokenizer.is_file():
            raise CheckpointError(f"{tokenizer}: is missing, and the Engram token map is made from it")
        token_map = torch.from_numpy(checked_token_map(tokenizer, config))  # [len(tokenizer)]
    elif os.path.lexists(tokenizer) and not tokenizer.is_file():
        raise CheckpointError(f"{tokenizer}: is not a regular file")
    weights = {name: _values(files, name) for name in files.names() if files.spec(name).dtype != "F8_E8M0"}
    files.check_unchanged()
    return Checkpoint(config, weights, token_map, tokenizer if tokenizer.is_file() else None)


def _stored(files: CheckpointFiles, name: str) -> Tensor:
    return torch.from_numpy(np.array(files.read(name)))


def _values(files: CheckpointFiles, name: str) -> Tensor:
    """One tensor's float32 values, in a memory of its own."""
    spec, stored = files.spec(name), _stored(files, name)
    if spec.dtype == "F32":
        return stored
    if spec.dtype == "BF16":
        return stored.view(torch.bfloat16).to(torch.float32)
    if spec.scale_name is None:
        raise CheckpointError(f"{files.folder}: tensor {name!r}: dtype {spec.dtype} has no decoder")
    values = _decoder(spec)(stored, _stored(files, spec.scale_name))
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{files.folder}: tensor {name!r}: overflows float32 with {spec.scale_name!r}")
    return values


def _decoder(spec: TensorSpec) -> Callable[[Tensor, Tensor], Tensor]:
    if spec.dtype == "I8":
        return formats.decode_fp4_rows
    return formats.decode_fp8_rows if spec.is_table else formats.decode_fp8_tiles


def _encoder(spec: TensorSpec) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    if spec.dtype == "I8":
        return formats.encode_fp4_rows
    return formats.encode_fp8_rows if spec.is_table else formats.encode_fp8_tiles


def save_checkpoint(
    folder: str | Path,
    config: ModelConfig,
    weights: dict[str, Tensor],
    tokenizer_json: str | Path | None = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Write config.json, the tensors in the released dtypes, and a copy of tokenizer.json.

    Values that their dtype represents come back unchanged from `load_checkpoint`; others are rounded to nearest even.

    Args:
        folder: made if absent; an earlier checkpoint there is replaced.
        weights: values by tensor name, as `Checkpoint.weights`, of any floating dtype.
        max_shard_bytes: None writes one file; else index and shards, each within this size unless one tensor is larger.

    Raises:
        CheckpointError: a tensor is missing, not part of the configuration, of another shape, or not finite.
    """
    folder = Path(folder)
    plan = tensor_plan(config)
    wanted = {name: spec for name, spec in plan.items() if spec.loaded and spec.dtype != "F8_E8M0"}
    for names, what in ((wanted.keys() - weights.keys(), "missing"), (weights.keys() - wanted.keys(), "not wanted")):
        if names:
            raise CheckpointError(f"{folder}: tensor {min(names)!r} is {what} among the {len(weights)} weights to save")
    stored = [item for name, spec in wanted.items() for item in _encoded(folder, plan, spec, weights[name])]
    folder.mkdir(parents=True, exist_ok=True)
    if max_shard_bytes is None:
        _write(folder / SINGLE_NAME, stored)
        (folder / INDEX_NAME).unlink(missing_ok=True)
    else:
        _write_shards(folder, _sharded(stored, max_shard_bytes))
        (folder / SINGLE_NAME).unlink(missing_ok=True)
    if tokenizer_json is not None and Path(tokenizer_json).resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_json, folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")


def _encoded(folder: Path, plan: dict[str, TensorSpec], spec: TensorSpec, values: Tensor) -> Iterator[StoredTensor]:
    """The tensor as it is stored, and after it its scale where it has one."""
    if tuple(values.shape) != spec.value_shape:
        shapes = f"shape {list(values.shape)}, must be {list(spec.value_shape)}"
        raise CheckpointError(f"{folder}: tensor {spec.name!r}: {shapes}")
    values = values.detach().to("cpu", torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{folder}: tensor {spec.name!r}: holds a NaN or an infinity")
    if spec.dtype == "F32":
        yield spec.name, spec.dtype, spec.shape, values.numpy()
    elif spec.dtype == "BF16":
        rounded = values.to(torch.bfloat16)
        if not bool(torch.isfinite(rounded).all()):
            raise CheckpointError(f"{folder}: tensor {spec.name!r}: holds a value that BF16 rounds to infinity")
        yield spec.name, spec.dtype, spec.shape, rounded.view(torch.uint16).numpy()
    else:
        codes, scale = _encoder(spec)(values)
        scale_spec = plan[str(spec.scale_name)]
        yield spec.name, spec.dtype, spec.shape, codes.numpy()
        yield scale_spec.name, scale_spec.dtype, scale_spec.shape, scale.numpy()


def _sharded(stored: list[StoredTensor], max_shard_bytes: int) -> list[list[StoredTensor]]:
    shards: list[list[StoredTensor]] = [[]]
    size = 0
    for item in stored:
        num_bytes = item[3].nbytes
        if shards[-1] and size + num_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(item)
        size += num_bytes
    return shards


def _write(path: Path, stored: list[StoredTensor]) -> None:
    """Write beside the target and move it there, so that a reader never maps half a file."""
    partial = path.with_name(path.name + ".partial")
    write_file(partial, stored)
    os.replace(partial, path)


def _write_shards(folder: Path, shards: list[list[StoredTensor]]) -> None:
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(folder / name, shard)
        weight_map |= {item[0]: name for item in shard}
    total = sum(item[3].nbytes for shard in shards for item in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
