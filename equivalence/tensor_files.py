"""Reads and writes safetensors files with nothing but the standard library and torch; knows no tensor names.

Separate from the readers under test, so that a fault in theirs cannot hide itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from equivalence.errors import SetupError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}


def load(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by name. Raises SetupError naming the file and what is wrong with it."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise SetupError(f"{path}: is not a regular file")
    try:
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        return {name: _tensor(data, 8 + length, entry) for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise SetupError(f"{path}: {type(error).__name__}: {error}") from error


def save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors (any device, made contiguous) in the order given."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, dict[str, object]] = {}
    blobs = []
    offset = 0
    for name, tensor in tensors.items():
        blob = bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        span = [offset, offset + len(blob)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def _tensor(data: bytes, base: int, entry: Mapping[str, object]) -> Tensor:
    dtype = DTYPES[str(entry["dtype"])]
    shape = [int(size) for size in entry["shape"]]  # type: ignore[attr-defined]
    begin, end = (int(offset) for offset in entry["data_offsets"])  # type: ignore[attr-defined]
    if end - begin != math.prod(shape) * dtype.itemsize or base + end > len(data):
        raise ValueError(f"bytes {begin}..{end} do not hold {shape} of {entry['dtype']}")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data[base + begin : base + end]), dtype=dtype).reshape(shape)
