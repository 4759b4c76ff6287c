"""One safetensors file: its header read strictly, its bytes mapped, and a writer.

It knows the container only: which tensors a model needs is not its business.
"""

import json
import math
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reference.spec import json_file
from reference.spec.errors import CheckpointError, shown

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 16
ALIGNMENT = 64
ITEM_BITS: dict[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64"), 64),
}
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors")


class Entry(NamedTuple):
    """One tensor of a file: stored dtype, shape, and the byte range counted from the file's first byte."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """A file whose header has been verified. Its bytes are mapped on the first `raw`, never copied whole."""

    def __init__(self, path: Path, entries: dict[str, Entry], state: tuple[int, ...]) -> None:
        self.path = path
        self.entries = entries
        self._state = state
        self._bytes: np.ndarray | None = None

    @classmethod
    def open(cls, path: Path) -> "SafetensorsFile":
        """Read and verify the header: lengths, JSON, dtypes, shapes, and offsets that tile the file without gap.

        Raises:
            CheckpointError: names the file, and the tensor where one is at fault.
        """
        try:
            state = _state(path)
            size = state[-1]
            if not path.is_file():
                raise CheckpointError(f"{path}: is not a regular file")
            with path.open("rb") as file:
                header = _header_bytes(path, file.read(8), size)
                text = file.read(header)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        try:
            if not text.startswith(b"{"):
                raise ValueError("does not start with '{'")
            document = json_file.parse_object(text)
        except ValueError as error:
            raise CheckpointError(f"{path}: the header is not valid: {error}") from error
        _check_metadata(path, document.pop("__metadata__", {}))
        start = 8 + header
        entries = {name: _entry(path, name, value, start) for name, value in document.items()}
        _check_tiling(path, entries, start, size)
        return cls(path, entries, state)

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes, uint8 [num_bytes], a read-only view of the mapped file.

        Raises:
            CheckpointError: the file was replaced, written to or removed since its header was read.
        """
        self.check_unchanged()
        if self._bytes is None:
            try:
                self._bytes = np.memmap(self.path, dtype=np.uint8, mode="r")
            except (OSError, ValueError) as error:
                raise CheckpointError(f"{self.path}: tensor {name!r} cannot be read: {error}") from error
            self.check_unchanged()
        entry = self.entries[name]
        return np.asarray(self._bytes[entry.begin : entry.end])

    def check_unchanged(self) -> None:
        """Whoever has copied what `raw` gave asks again, so that bytes of two versions are never mixed.

        Raises:
            CheckpointError: the file was replaced, written to or removed since its header was read.
        """
        try:
            state = _state(self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path}: was there, and cannot be read now: {error.strerror}") from error
        if state != self._state:
            raise CheckpointError(f"{self.path}: was changed while it was being loaded")


def _state(path: Path) -> tuple[int, ...]:
    """What differs after a file was replaced or written to: device, inode, time of change, and size."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _header_bytes(path: Path, prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise CheckpointError(f"{path}: truncated: {size} bytes cannot hold the 8-byte header length")
    length = int(struct.unpack("<Q", prefix)[0])
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{path}: header length {length} is absurd, at most {MAX_HEADER_BYTES} is accepted")
    if 8 + length > size:
        raise CheckpointError(f"{path}: truncated: header length {length} does not fit into {size} bytes")
    return length


def _check_metadata(path: Path, metadata: Any) -> None:
    plain = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    if not plain:
        raise CheckpointError(f"{path}: __metadata__ = {shown(metadata)}: must map strings to strings")


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: {shown(value)} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise CheckpointError(f"{where}: dtype {shown(dtype)} is not one of {sorted(ITEM_BITS)}")
    if not _is_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise CheckpointError(f"{where}: shape {shown(shape)} is not a list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {shown(offsets)} must be [begin, end] with 0 <= begin <= end")
    wanted = math.prod(shape) * ITEM_BITS[dtype] // 8
    if offsets[1] - offsets[0] != wanted:
        law = f"span {offsets[1] - offsets[0]} bytes, but {dtype} {shape} takes {wanted}"
        raise CheckpointError(f"{where}: data_offsets {offsets} {law}")
    return Entry(dtype, tuple(shape), start + offsets[0], start + offsets[1])


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_tiling(path: Path, entries: dict[str, Entry], start: int, size: int) -> None:
    position, last = start, "the header"
    for name, entry in entries.items():
        if entry.end > size:
            law = f"ends at byte {entry.end}, but the file is truncated at {size}"
            raise CheckpointError(f"{path}: tensor {name!r}: {law}")
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        where = f"{path}: tensor {name!r}"
        if entry.begin < position:
            law = f"overlaps {last}, which ends at {position}"
            raise CheckpointError(f"{where}: begins at byte {entry.begin} and {law}")
        if entry.begin > position:
            law = f"leaves a gap of {entry.begin - position} bytes after {last}"
            raise CheckpointError(f"{where}: begins at byte {entry.begin} and {law}")
        position, last = entry.end, f"tensor {name!r}"
    if position != size:
        raise CheckpointError(f"{path}: {size - position} bytes follow {last}, the last tensor")


def write_file(path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...], np.ndarray]]) -> None:
    """Write (name, dtype, shape, contiguous array of the stored bytes) in the given order.

    The header is padded with blanks so that the data begin at a multiple of 64 bytes.
    """
    items = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape, array in items:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, _, _, array in items:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
