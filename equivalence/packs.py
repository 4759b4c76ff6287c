"""Reads golden packs: the folder layout, the keys, whole tensors against tails; knows no model.

A pack is a folder with config.json, model.safetensors, inputs.safetensors and any number of expected_MODE.safetensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from equivalence import tensor_files
from equivalence.errors import SetupError

MODES = ("fp32_noq", "official", "fp32", "fp32_aq", "bf16")

_EXPECTED = re.compile(r"expected_(\w+)\.safetensors")
_TAIL = re.compile(r"\.tail(\d+)$")


@dataclass(frozen=True)
class Pack:
    """One pack. folder: where it lies; name: the folder's name."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes that are present, known ones first."""
        found = {match[1] for path in self.folder.iterdir() if (match := _EXPECTED.fullmatch(path.name))}
        return tuple(mode for mode in MODES if mode in found) + tuple(sorted(found - set(MODES)))

    @cached_property
    def input_ids(self) -> Tensor:
        """The prompt: [S] int64."""
        tensors = tensor_files.load(self.folder / "inputs.safetensors")
        if "input_ids" not in tensors:
            raise SetupError(f"{self.folder}: inputs.safetensors has no input_ids")
        ids = tensors["input_ids"]
        if ids.is_floating_point() or ids.dtype == torch.bool or not ids.numel():
            raise SetupError(
                f"{self.folder}: input_ids of inputs.safetensors: {list(ids.shape)} {ids.dtype} are no ids"
            )
        return ids.reshape(-1).long()  # [S]

    @cached_property
    def token_map(self) -> Tensor | None:
        """Compressed id of every token as recorded, int64 [tokens]; None where the pack has no Engram."""
        path = self.folder / "engram_token_map.json"
        if not path.is_file():
            return None
        try:
            return torch.tensor(json.loads(path.read_text()), dtype=torch.int64)
        except (OSError, ValueError, TypeError) as error:
            raise SetupError(f"{path}: {error}") from error

    def expected(self, mode: str) -> Recording:
        """What one mode recorded."""
        return Recording(tensor_files.load(self.folder / f"expected_{mode}.safetensors"))


@dataclass
class Recording:
    """The tensors of one mode by key; remembers which were used, so that the rest can be listed.

    tensors: by the key in the file, `.tailN` included.
    """

    tensors: dict[str, Tensor]
    used: set[str] = field(default_factory=set)

    def whole(self, key: str) -> Tensor | None:
        """The tensor of all rows, or None where it is absent or only its tail was kept."""
        if key in self.tensors:
            self.used.add(key)
        return self.tensors.get(key)

    def rows(self, key: str, count: int) -> tuple[Tensor, int] | None:
        """The recorded rows of `count` and the index of the first: the whole tensor or its tail, None where absent."""
        if key in self.tensors:
            return self.tensors[self._use(key)], 0
        for stored, tensor in self.tensors.items():
            if _TAIL.sub("", stored) == key and stored != key:
                self._use(stored)
                if tensor.ndim == 0 or tensor.shape[0] > count:
                    raise SetupError(f"{stored}: shape {list(tensor.shape)} is no tail of {count} rows")
                return tensor, count - tensor.shape[0]
        return None

    def has(self, key: str) -> bool:
        """Whether the whole tensor is there."""
        return key in self.tensors

    def unused(self) -> Iterator[str]:
        """Keys of non-empty tensors that nothing asked for, sorted."""
        return iter(sorted(key for key in set(self.tensors) - self.used if self.tensors[key].numel()))

    def _use(self, key: str) -> str:
        self.used.add(key)
        return key


def find_packs(folder: Path) -> list[Pack]:
    """The packs in a folder, by name. Raises SetupError when the folder is absent or holds none."""
    if not folder.is_dir():
        raise SetupError(f"golden packs: no folder {folder} (set COUNTERPOINT_GOLDEN to a folder of packs)")
    packs = [Pack(path) for path in sorted(folder.iterdir()) if (path / "config.json").is_file()]
    if not packs:
        raise SetupError(f"golden packs: {folder} holds no pack (a sub-folder with config.json)")
    return packs
