"""A checkpoint folder checked against a configuration, name by name, before a single value is used.

It knows the released file layout (index and shards, or one file) and hands out stored bytes; it decodes nothing.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reference.spec import json_file
from reference.spec.errors import CheckpointError, shown
from reference.spec.safetensors_file import FILE_NAME, SafetensorsFile
from reference.spec.tensors import TensorSpec, tensor_plan

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig


INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
SCAN_ITEMS = 1 << 22
STORED_AS: dict[str, str] = {"BF16": "<u2", "F32": "<f4", "F8_E4M3": "|u1", "F8_E8M0": "|u1", "I8": "|u1"}


class CheckpointFiles:
    """The verified files of a checkpoint.

    Every tensor of the plan is there once, in the shape and dtype of the plan, and no other tensor is. Tensors that
    the text engine does not load (vision) may be absent, and are checked like the others where they are present.
    """

    def __init__(self, folder: Path, specs: dict[str, TensorSpec], files: dict[str, SafetensorsFile]) -> None:
        self.folder = folder
        self._specs = specs
        self._files = files

    @classmethod
    def open(cls, folder: str | Path, config: "ModelConfig") -> "CheckpointFiles":
        """Verify all headers and the index of a folder. Symbolic links to files are followed, as hub caches need.

        Raises:
            CheckpointError: names the file and the tensor.
        """
        folder = Path(folder)
        if not os.path.isdir(folder):
            raise CheckpointError(f"{folder}: is not a folder")
        plan = tensor_plan(config)
        index, single = folder / INDEX_NAME, folder / SINGLE_NAME
        indexed, alone = os.path.lexists(index), os.path.lexists(single)
        if indexed and alone:
            raise CheckpointError(f"{folder}: holds both {INDEX_NAME} and {SINGLE_NAME}; which one counts is unclear")
        if indexed:
            files = _open_shards(folder, index, plan)
        elif alone:
            opened = SafetensorsFile.open(single)
            files = dict.fromkeys(opened.entries, opened)
        else:
            raise CheckpointError(f"{folder}: holds neither {INDEX_NAME} nor {SINGLE_NAME}")
        _check_names(index if indexed else single, set(files), plan)
        for name, file in files.items():
            _check_entry(file, plan[name])
        return cls(folder, {name: spec for name, spec in plan.items() if name in files}, files)

    def names(self) -> list[str]:
        """Names of the tensors to load, in the order of the plan."""
        return [name for name, spec in self._specs.items() if spec.loaded]

    def spec(self, name: str) -> TensorSpec:
        """The plan's entry of a tensor.

        Raises:
            KeyError: no such tensor in this checkpoint.
        """
        return self._specs[name]

    def read(self, name: str) -> np.ndarray:
        """The stored values of a tensor, a read-only view of the mapped file in the shape of the plan.

        BF16 comes as uint16 bits, F32 as float32, FP8 codes, scale bytes and packed FP4 bytes as uint8.

        Raises:
            CheckpointError: a NaN or infinity is stored, or a NaN scale byte; names tensor, file and place.
            KeyError: no such tensor in this checkpoint.
        """
        spec, file = self._specs[name], self._files[name]
        values = file.raw(name).view(STORED_AS[spec.dtype]).reshape(spec.shape)
        _check_values(file.path, spec, values.reshape(-1))
        return values

    def check_unchanged(self) -> None:
        """To be called when all values were copied: no file changed in the meantime.

        Raises:
            CheckpointError: names the file.
        """
        for file in {id(file): file for file in self._files.values()}.values():
            file.check_unchanged()


def _open_shards(folder: Path, index: Path, plan: dict[str, TensorSpec]) -> dict[str, SafetensorsFile]:
    weight_map = _weight_map(index)
    _check_names(index, set(weight_map), plan)
    shards: dict[str, SafetensorsFile] = {}
    for name, shard in weight_map.items():
        if shard in shards:
            continue
        path = folder / shard
        if not os.path.isfile(path):  # a name too long is no file either
            where = f"{shown(shard)}, which is absent from {folder}"
            raise CheckpointError(f"{index}: tensor {name!r} is said to be in {where}")
        shards[shard] = SafetensorsFile.open(path)
    files: dict[str, SafetensorsFile] = {}
    for shard, file in shards.items():
        for name in file.entries:
            if name not in weight_map:
                raise CheckpointError(f"{file.path}: tensor {name!r} is not in the weight_map of {index.name}")
            if weight_map[name] != shard:
                law = f"but the weight_map of {index.name} puts it in {weight_map[name]}"
                twice = " (a duplicate)" if name in shards[weight_map[name]].entries else ""
                raise CheckpointError(f"{file.path}: tensor {name!r} is here{twice}, {law}")
            files[name] = file
    for name, shard in weight_map.items():
        if name not in files:
            raise CheckpointError(f"{folder / shard}: tensor {name!r} is missing, though {index.name} puts it here")
    return files


def _weight_map(index: Path) -> dict[str, str]:
    try:
        document: dict[str, Any] = json_file.read_object(index)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: cannot be read as an index: {error}") from error
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: weight_map = {shown(weight_map)}: must map tensor names to file names")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not FILE_NAME.fullmatch(shard):
            law = "must be the plain name of a .safetensors file in the same folder"
            raise CheckpointError(f"{index}: tensor {name!r}: file {shown(shard)} {law}")
    return weight_map


def _check_names(where: Path, found: set[str], plan: dict[str, TensorSpec]) -> None:
    missing = [name for name, spec in plan.items() if spec.loaded and name not in found]
    extra = sorted(found - plan.keys())
    for names, what in ((missing, "missing"), (extra, "not part of this configuration")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise CheckpointError(f"{where}: tensor {names[0]!r} is {what}{more}")


def _check_entry(file: SafetensorsFile, spec: TensorSpec) -> None:
    entry = file.entries[spec.name]
    if entry.dtype != spec.dtype:
        raise CheckpointError(f"{file.path}: tensor {spec.name!r}: dtype {entry.dtype}, must be {spec.dtype}")
    if entry.shape != spec.shape:
        shapes = f"shape {list(entry.shape)}, must be {list(spec.shape)}"
        raise CheckpointError(f"{file.path}: tensor {spec.name!r}: {shapes}")


def _check_values(path: Path, spec: TensorSpec, flat: np.ndarray) -> None:
    """Scan in pieces, so that a table of any size costs a bounded amount of memory."""
    for start in range(0, len(flat), SCAN_ITEMS):
        bad = _not_finite(spec.dtype, flat[start : start + SCAN_ITEMS])
        if bad is not None and bad.any():
            at = start + int(bad.argmax())
            index = tuple(int(part) for part in np.unravel_index(at, spec.shape))
            raise CheckpointError(f"{path}: tensor {spec.name!r}: {spec.dtype} element {index} is NaN or infinite")


def _not_finite(dtype: str, piece: np.ndarray) -> np.ndarray | None:
    if dtype == "BF16":
        return (piece & 0x7F80) == 0x7F80
    if dtype == "F32":
        return ~np.isfinite(piece)
    if dtype == "F8_E4M3":
        return (piece & 0x7F) == 0x7F
    if dtype == "F8_E8M0":
        return piece == 0xFF
    return None
