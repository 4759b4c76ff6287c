"""Checkpoints that must be refused, each one valid but for one thing.

`python -m reference.tests.hostile_checkpoints FOLDER` writes them all, to be opened and looked at.
It knows the safetensors container and the file layout; it knows nothing about how a reader is built.
"""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reference.tests.small_checkpoint import TOKENS, write_small_checkpoint, write_tokenizer

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 40_000


class Hostile(NamedTuple):
    """One case. sharded: starts from index and shards. says: what the refusal must contain, in any order."""

    name: str
    sharded: bool
    spoil: Callable[[Path], None]
    says: tuple[str, ...]


CASES: list[Hostile] = []


def case(*says: str, sharded: bool = False) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """Register a function that spoils a valid folder."""

    def register(spoil: Callable[[Path], None]) -> Callable[[Path], None]:
        CASES.append(Hostile(spoil.__name__, sharded, spoil, says))
        return spoil

    return register


def write_hostile_checkpoint(hostile: Hostile, folder: Path) -> Path:
    """Write one case into a folder."""
    write_small_checkpoint(folder, max_shard_bytes=SHARD_BYTES if hostile.sharded else None)
    hostile.spoil(folder)
    return folder


class File:
    """A safetensors file taken apart, to be changed and put together again without any check."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        self.path = path
        self.header: dict[str, Any] = json.loads(content[8 : 8 + length])
        self.data = bytearray(content[8 + length :])

    def write(self, header: bytes | None = None, length: int | None = None) -> None:
        text = json.dumps(self.header).encode() if header is None else header
        self.path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(self.data))

    def put(self, name: str, at: int, values: bytes) -> None:
        begin = self.header[name]["data_offsets"][0] + at
        self.data[begin : begin + len(values)] = values


def edit(folder: Path, change: Callable[[File], None]) -> None:
    """Change the single file's parts and write it back."""
    file = File(folder / SINGLE)
    change(file)
    file.write()


def edit_entry(folder: Path, name: str, **fields: Any) -> None:
    """Change fields of one tensor's header entry."""
    edit(folder, lambda file: file.header[name].update(fields))


def edit_index(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the index and write it back."""
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def shard_of(folder: Path, name: str) -> Path:
    """The shard that holds a tensor."""
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


# ---- names ----


@case("layers.1.attn.attn_sink", "missing", SINGLE)
def missing_tensor(folder: Path) -> None:
    edit(folder, lambda file: file.header.__setitem__("nobody.asked", file.header.pop("layers.1.attn.attn_sink")))


@case("layers.0.attn.compressor.wgate.weight", "not part", SINGLE)
def extra_tensor(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    edit(folder, lambda file: file.header.__setitem__("layers.0.attn.compressor.wgate.weight", entry))


@case("vision.norm.weight", "not part", SINGLE)
def vision_tensor_without_vision_config(folder: Path) -> None:
    entry = {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}
    edit(folder, lambda file: file.header.__setitem__("vision.norm.weight", entry))


@case("embed.weight", "twice", SINGLE)
def duplicate_tensor_in_header(folder: Path) -> None:
    file = File(folder / SINGLE)
    text = json.dumps(file.header)
    file.write((text[:-1] + f', "embed.weight": {json.dumps(file.header["embed.weight"])}}}').encode())


# ---- shapes and dtypes ----


@case("layers.0.attn.wq_a.weight", "[64, 32]", "[32, 64]", SINGLE)
def transposed_weight(folder: Path) -> None:
    edit_entry(folder, "layers.0.attn.wq_a.weight", shape=[64, 32])


@case("layers.0.hc_attn_scale", "F32", "I32", SINGLE)
def wrong_dtype(folder: Path) -> None:
    edit_entry(folder, "layers.0.hc_attn_scale", dtype="I32")


@case("layers.1.ffn.experts.2.w1.weight", "U8", "I8", SINGLE)
def unsigned_packed_expert(folder: Path) -> None:
    edit_entry(folder, "layers.1.ffn.experts.2.w1.weight", dtype="U8")


@case("layers.2.attn.wq_b.scale", "[1, 2]", "[2, 1]", SINGLE)
def wrong_scale_shape(folder: Path) -> None:
    edit_entry(folder, "layers.2.attn.wq_b.scale", shape=[1, 2])


@case("norm.weight", "F7", SINGLE)
def unknown_dtype(folder: Path) -> None:
    edit_entry(folder, "norm.weight", dtype="F7")


@case("norm.weight", "shape", "True", SINGLE)
def boolean_in_shape(folder: Path) -> None:
    edit_entry(folder, "norm.weight", shape=[True, 64])


@case("norm.weight", "shape", "-64", SINGLE)
def negative_shape(folder: Path) -> None:
    edit_entry(folder, "norm.weight", shape=[-64])


@case("norm.weight", "shape", SINGLE)
def thousand_dimensions(folder: Path) -> None:
    edit_entry(folder, "norm.weight", shape=[64] + [1] * 1000)


# ---- offsets ----


@case("norm.weight", "overlaps", SINGLE)
def overlapping_offsets(folder: Path) -> None:
    begin = File(folder / SINGLE).header["norm.weight"]["data_offsets"][0]
    edit_entry(folder, "norm.weight", data_offsets=[begin - 2, begin + 126])


@case("norm.weight", "gap", SINGLE)
def gap_before_a_tensor(folder: Path) -> None:
    def shift(file: File) -> None:
        begin = file.header["norm.weight"]["data_offsets"][0]
        file.data[begin:begin] = bytes(16)
        for name, entry in file.header.items():
            if name != "__metadata__" and entry["data_offsets"][0] >= begin:
                entry["data_offsets"] = [offset + 16 for offset in entry["data_offsets"]]

    edit(folder, shift)


@case("16 bytes follow", SINGLE)
def bytes_after_the_last_tensor(folder: Path) -> None:
    edit(folder, lambda file: file.data.extend(bytes(16)))


@case("norm.weight", "-128", SINGLE)
def negative_offset(folder: Path) -> None:
    edit_entry(folder, "norm.weight", data_offsets=[-128, 0])


@case("norm.weight", "truncated", SINGLE)
def offset_far_past_the_end(folder: Path) -> None:
    edit_entry(folder, "norm.weight", data_offsets=[2**62, 2**62 + 128])


@case("norm.weight", "data_offsets", SINGLE)
def offset_beyond_64_bits(folder: Path) -> None:
    edit_entry(folder, "norm.weight", data_offsets=[2**70, 2**70 + 128])


@case("norm.weight", "begin <= end", SINGLE)
def reversed_offsets(folder: Path) -> None:
    edit_entry(folder, "norm.weight", data_offsets=[128, 0])


@case("norm.weight", "128", "64", SINGLE)
def offsets_too_short_for_the_shape(folder: Path) -> None:
    begin = File(folder / SINGLE).header["norm.weight"]["data_offsets"][0]
    edit_entry(folder, "norm.weight", data_offsets=[begin, begin + 64])


@case("norm.weight", "data_offsets", SINGLE)
def fractional_offsets(folder: Path) -> None:
    edit_entry(folder, "norm.weight", data_offsets=[0.0, 128.0])


# ---- the container ----


@case("truncated", SINGLE)
def empty_file(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"")


@case("mtp.0.confidence_head.proj.weight", "truncated", SINGLE)
def truncated_data(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:-3])


@case("truncated", SINGLE)
def truncated_header(folder: Path) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:1000])


@case("absurd", SINGLE)
def absurd_header_length(folder: Path) -> None:
    File(folder / SINGLE).write(length=2**63)


@case("header", "valid", SINGLE)
def header_is_not_json(folder: Path) -> None:
    File(folder / SINGLE).write(b"{'embed.weight': 1}")


@case("header", "'{'", SINGLE)
def header_is_a_list(folder: Path) -> None:
    File(folder / SINGLE).write(b"[]")


@case("header", "utf-8", SINGLE)
def header_is_not_utf8(folder: Path) -> None:
    File(folder / SINGLE).write(b'{"\xff": 1}')


@case("header", "deep", SINGLE)
def header_is_nested_too_deeply(folder: Path) -> None:
    File(folder / SINGLE).write(b'{"a":' + b"[" * 200_000)


@case("embed.weight", "exactly", SINGLE)
def entry_without_shape(folder: Path) -> None:
    edit(folder, lambda file: file.header["embed.weight"].pop("shape"))


@case("embed.weight", "exactly", SINGLE)
def entry_that_is_a_number(folder: Path) -> None:
    edit(folder, lambda file: file.header.__setitem__("embed.weight", 7))


@case("__metadata__", SINGLE)
def metadata_that_is_no_text(folder: Path) -> None:
    edit(folder, lambda file: file.header.__setitem__("__metadata__", {"format": 1}))


# ---- values ----


@case("layers.1.attn.wkv.scale", "(0, 1)", "NaN", SINGLE)
def nan_scale_byte(folder: Path) -> None:
    edit(folder, lambda file: file.put("layers.1.attn.wkv.scale", 1, b"\xff"))


@case("layers.2.ffn.experts.3.w2.scale", "NaN", SINGLE)
def nan_scale_byte_of_an_expert(folder: Path) -> None:
    edit(folder, lambda file: file.put("layers.2.ffn.experts.3.w2.scale", 5, b"\xff"))


@case("layers.0.attn.wo_b.weight", "(1, 3)", "NaN", SINGLE)
def nan_fp8_weight(folder: Path) -> None:
    edit(folder, lambda file: file.put("layers.0.attn.wo_b.weight", 35, b"\x7f"))


@case("layers.0.engram.embed.weight", "NaN", SINGLE)
def negative_nan_in_an_engram_table(folder: Path) -> None:
    edit(folder, lambda file: file.put("layers.0.engram.embed.weight", 0, b"\xff"))


@case("head.weight", "infinite", SINGLE)
def infinite_bf16_weight(folder: Path) -> None:
    edit(folder, lambda file: file.put("head.weight", 2, struct.pack("<H", 0x7F80)))


@case("mtp.0.hc_ffn_base", "NaN", SINGLE)
def nan_f32_weight(folder: Path) -> None:
    edit(folder, lambda file: file.put("mtp.0.hc_ffn_base", 4, struct.pack("<f", float("nan"))))


@case("layers.1.attn.wq_a.weight", "overflows", "layers.1.attn.wq_a.scale")
def scale_that_overflows_float32(folder: Path) -> None:
    def spoil(file: File) -> None:
        file.put("layers.1.attn.wq_a.scale", 0, b"\xfe")
        file.put("layers.1.attn.wq_a.weight", 0, b"\x7e")

    edit(folder, spoil)


# ---- index and shards ----


@case("head.weight", "absent", "model-00099-of-00099.safetensors", INDEX, sharded=True)
def index_names_an_absent_shard(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"head.weight": "model-00099-of-00099.safetensors"}))


@case("head.weight", "../outside.safetensors", "plain name", INDEX, sharded=True)
def index_leaves_the_folder(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"head.weight": "../outside.safetensors"}))


@case("head.weight", "/etc/passwd", "plain name", INDEX, sharded=True)
def index_names_an_absolute_path(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"head.weight": "/etc/passwd"}))


@case("head.weight", "None", "plain name", INDEX, sharded=True)
def index_maps_to_null(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].update({"head.weight": None}))


@case("norm.weight", "weight_map", "model-00001", sharded=True)
def index_puts_a_tensor_into_the_wrong_shard(folder: Path) -> None:
    last = shard_of(folder, "mtp.0.confidence_head.proj.weight").name
    edit_index(folder, lambda index: index["weight_map"].update({"norm.weight": last}))


@case("norm.weight", "missing", INDEX, sharded=True)
def index_forgets_a_tensor(folder: Path) -> None:
    edit_index(folder, lambda index: index["weight_map"].pop("norm.weight"))


@case("layers.9.attn_norm.weight", "not part", INDEX, sharded=True)
def index_invents_a_tensor(folder: Path) -> None:
    first = shard_of(folder, "norm.weight").name
    edit_index(folder, lambda index: index["weight_map"].update({"layers.9.attn_norm.weight": first}))


@case("mtp.0.confidence_head.proj.weight", "missing", "-of-", sharded=True)
def shard_lacks_a_tensor_of_the_index(folder: Path) -> None:
    file = File(shard_of(folder, "mtp.0.confidence_head.proj.weight"))
    begin, end = file.header.pop("mtp.0.confidence_head.proj.weight")["data_offsets"]
    del file.data[begin:end]
    file.write()


@case("norm.weight", "duplicate", "-of-", sharded=True)
def tensor_in_two_shards(folder: Path) -> None:
    file = File(shard_of(folder, "mtp.0.confidence_head.proj.weight"))
    end = len(file.data)
    file.header["norm.weight"] = {"dtype": "BF16", "shape": [64], "data_offsets": [end, end + 128]}
    file.data.extend(bytes(128))
    file.write()


@case("mtp.0.confidence_head.proj.weight", "truncated", "-of-", sharded=True)
def truncated_shard(folder: Path) -> None:
    path = shard_of(folder, "mtp.0.confidence_head.proj.weight")
    path.write_bytes(path.read_bytes()[:-1])


@case("weight_map", INDEX, sharded=True)
def index_without_weight_map(folder: Path) -> None:
    edit_index(folder, lambda index: index.pop("weight_map"))


@case("cannot be read", INDEX, sharded=True)
def index_is_not_json(folder: Path) -> None:
    (folder / INDEX).write_text("{")


@case("norm.weight", "twice", INDEX, sharded=True)
def index_names_a_tensor_twice(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    shard = shard_of(folder, "norm.weight").name
    (folder / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"norm.weight": "{shard}",', 1))


@case(INDEX, SINGLE, "both", sharded=True)
def index_and_single_file(folder: Path) -> None:
    (folder / SINGLE).write_bytes(shard_of(folder, "norm.weight").read_bytes())


@case("embed.weight", "absent", INDEX, sharded=True)
def shard_is_a_folder(folder: Path) -> None:
    path = shard_of(folder, "embed.weight")
    path.unlink()
    path.mkdir()


@case("cannot be read", INDEX, sharded=True)
def index_is_a_dangling_link(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / INDEX).symlink_to(folder / "gone.json")


@case("cannot be read", SINGLE)
def single_file_is_a_dangling_link(folder: Path) -> None:
    (folder / SINGLE).unlink()
    (folder / SINGLE).symlink_to(folder / "gone.safetensors")


@case("neither", SINGLE, INDEX)
def no_tensors_at_all(folder: Path) -> None:
    (folder / SINGLE).unlink()


# ---- the tokenizer that Engram needs ----


@case("tokenizer.json", "missing", "Engram")
def engram_without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@case("tokenizer.json", "7 compressed ids", "engram_compressed_vocab_size = 6")
def tokenizer_of_another_model(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json", [*TOKENS, "d"])


@case("tokenizer.json", "17 tokens", "vocab_size = 16")
def tokenizer_larger_than_the_vocabulary(folder: Path) -> None:
    write_tokenizer(folder / "tokenizer.json", [*TOKENS, *"defghijkl"])


@case("tokenizer.json", "cannot be read")
def tokenizer_that_is_not_one(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def main(target: Path) -> None:
    """Write every case into a subfolder of target."""
    for hostile in CASES:
        write_hostile_checkpoint(hostile, target / hostile.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
