"""The shipped packs pass; packs of any shape pass; a planted error turns each kind of comparison red."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from equivalence import tensor_files
from equivalence.cases import SHIPPED_GOLDEN, Case
from equivalence.checks.model import golden, known_answers
from equivalence.errors import SetupError
from equivalence.findings import Findings
from equivalence.generators.configs import random_config
from equivalence.generators.packs import write_pack
from equivalence.packs import Pack, find_packs
from reference.tiny.build import random_checkpoint

SEED = 2675
"""Of a configuration with three layers, ratios 0, 1 and 1."""


def run(folder: Path, pack: str, mode: str) -> Findings:
    """Compare one mode of one pack."""
    return golden.run(Case("model", pack, {"part": "golden", "pack": pack, "mode": mode}), folder)


def make_pack(folder: Path, seed: int, length: int, modes: tuple[str, ...]) -> Path:
    """A pack `made` of a random checkpoint; returns the folder of packs."""
    rng = random.Random(seed)
    random_checkpoint(random_config(seed), seed, folder / "checkpoint")
    write_pack(folder / "packs" / "made", folder / "checkpoint", [rng.randrange(384) for _ in range(length)], modes)
    return folder / "packs"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one pack with selections, candidates and Engram; not to be changed."""
    return make_pack(tmp_path_factory.mktemp("packs"), SEED, 21, ("official", "fp32_noq"))


@pytest.fixture
def packs(written: Path, tmp_path: Path) -> Path:
    """The same to be changed."""
    return Path(shutil.copytree(written, tmp_path / "packs"))


def change(folder: Path, mode: str, key: str, amount: float) -> None:
    """Add an amount to every element of one recorded tensor, or move it where it is a choice."""
    path = folder / "made" / f"expected_{mode}.safetensors"
    tensors = tensor_files.load(path)
    old = tensors[key]
    tensors[key] = (old + 1) % (old.max() + 1) if not old.is_floating_point() else (old.float() + amount).to(old.dtype)
    assert not torch.equal(tensors[key], old)
    tensor_files.save(path, tensors)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("pack", "mode"), [(pack.name, mode) for pack in find_packs(SHIPPED_GOLDEN) for mode in pack.modes]
)
def test_shipped_packs_pass(pack: str, mode: str) -> None:
    findings = run(SHIPPED_GOLDEN, pack, mode)
    assert findings.differences == []
    assert findings.not_compared == []
    assert findings.comparisons > 150


@pytest.mark.ci
def test_shipped_packs_stay_small() -> None:
    assert sum(path.stat().st_size for path in SHIPPED_GOLDEN.rglob("*") if path.is_file()) <= 12_000_000


@pytest.mark.ci
def test_known_answers_hold() -> None:
    assert known_answers.run().differences == []


@pytest.mark.ci
@pytest.mark.parametrize(("seed_of_config", "length"), [(2, 1), (39, 21)])
def test_packs_of_any_shape_pass(seed_of_config: int, length: int, tmp_path: Path) -> None:
    modes = ("official", "fp32_noq", "fp32", "fp32_aq", "bf16")
    packs = make_pack(tmp_path, seed_of_config, length, modes)
    assert Pack(packs / "made").modes == ("fp32_noq", "official", "fp32", "fp32_aq", "bf16")
    for mode in modes:
        assert run(packs, "made", mode).differences == []


@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 270])
@pytest.mark.parametrize("seed_of_config", range(3))
def test_longer_packs_pass_whole_or_as_tails(seed_of_config: int, length: int, tmp_path: Path) -> None:
    packs = make_pack(tmp_path, seed_of_config, length, ("official", "fp32_noq"))
    for mode in ("official", "fp32_noq"):
        assert run(packs, "made", mode).differences == []


PLANTED = {
    "fp32_noq": ("logits", "decode_logits", "greedy_ids", "prefill.hidden_final", "decode1.L0.expert_ids"),
    "official": (
        "logits",
        "greedy_ids",
        "prefill.L0.attn_pre",
        "prefill.L0.attn_core",
        "prefill.L0.attn_out",
        "prefill.L0.window_kv",
        "prefill.L1.h_attn",
        "prefill.L1.expert_ids",
        "prefill.L1.ffn_out",
        "decode1.L1.h_ffn",
        "decode_logits",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize(("mode", "key"), [(mode, key) for mode, keys in PLANTED.items() for key in keys])
def test_a_planted_error_is_found(mode: str, key: str, packs: Path) -> None:
    change(packs, mode, key, 0.05)
    assert run(packs, "made", mode).differences


@pytest.mark.ci
def test_selections_are_compared(packs: Path) -> None:
    source = random_config(SEED).index_source_layer_ids[0]
    for mode in ("official", "fp32_noq"):
        change(packs, mode, f"prefill.L{source}.topk_idxs", 0)
        assert any("topk_idxs" in difference.item for difference in run(packs, "made", mode).differences)


@pytest.mark.ci
def test_a_missing_tensor_is_listed_and_not_passed(packs: Path) -> None:
    path = packs / "made" / "expected_official.safetensors"
    tensors = tensor_files.load(path)
    before = run(packs, "made", "official")
    del tensors["prefill.L0.window_kv"]
    tensor_files.save(path, tensors)
    after = run(packs, "made", "official")
    assert after.differences == []
    assert after.comparisons < before.comparisons
    assert any("L0.window_kv" in line for line in after.not_compared)


@pytest.mark.ci
def test_a_mode_that_holds_nothing_is_a_difference(packs: Path) -> None:
    tensor_files.save(packs / "made" / "expected_fp32.safetensors", {"unknown": torch.zeros(1)})
    assert [difference.kind for difference in run(packs, "made", "fp32").differences] == ["pack"]


@pytest.mark.ci
def test_a_pack_without_modes_beside_a_good_one_is_a_difference(packs: Path) -> None:
    (packs / "bare").mkdir()
    shutil.copyfile(packs / "made" / "config.json", packs / "bare" / "config.json")
    found = {case.name: golden.run(case, packs).differences for case in golden.cases(packs)}
    assert [name for name, differences in found.items() if differences] == ["golden/bare/nothing"]


@pytest.mark.ci
@pytest.mark.parametrize("name", ["expected_official.safetensors", "inputs.safetensors"])
@pytest.mark.parametrize("special", [os.mkfifo, os.mkdir])
def test_what_is_no_file_in_a_pack_is_refused_and_not_waited_for(
    special: Callable[[Path], None], name: str, packs: Path
) -> None:
    (packs / "made" / name).unlink()
    special(packs / "made" / name)
    with pytest.raises(SetupError, match=f"{name}: is not a regular file"):
        run(packs, "made", "official")


@pytest.mark.ci
@pytest.mark.parametrize(
    "spoil",
    [lambda ids: ids[:-1], lambda ids: [], lambda ids: [*ids, 0], lambda ids: [*ids[:7], ids[7] + 1, *ids[8:]]],
    ids=["one less", "none", "one more", "one wrong"],
)
def test_the_whole_token_map_is_compared(spoil: Callable[[list[int]], list[int]], tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    shutil.copytree(SHIPPED_GOLDEN / "c11_dspark", tmp_path / "packs" / "made")
    path = tmp_path / "packs" / "made" / "engram_token_map.json"
    path.write_text(json.dumps(spoil(json.loads(path.read_text()))))
    assert [found.item for found in run(tmp_path / "packs", "made", "fp32_noq").differences] == ["engram_token_map"]


@pytest.mark.ci
@pytest.mark.parametrize("ids", [torch.tensor([1.5]), torch.tensor([True]), torch.zeros(0, dtype=torch.int64)])
def test_input_that_is_no_ids_is_refused(ids: torch.Tensor, packs: Path) -> None:
    tensor_files.save(packs / "made" / "inputs.safetensors", {"input_ids": ids})
    with pytest.raises(SetupError, match="are no ids"):
        run(packs, "made", "fp32_noq")


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["official", "fp32_noq"])
def test_decode_rows_without_their_tokens_are_listed(mode: str, packs: Path) -> None:
    path = packs / "made" / f"expected_{mode}.safetensors"
    tensors = tensor_files.load(path)
    del tensors["greedy_ids"], tensors["decode_logits"]
    tensor_files.save(path, tensors)
    found = run(packs, "made", mode)
    assert found.differences == []
    assert found.comparisons
    assert any("decode0" in line for line in found.not_compared)


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["official", "fp32_noq"])
@pytest.mark.parametrize("tail", [torch.zeros(400, 384), torch.zeros(())], ids=["too long", "no rows"])
def test_a_tail_that_is_none_is_refused(tail: torch.Tensor, mode: str, packs: Path) -> None:
    path = packs / "made" / f"expected_{mode}.safetensors"
    tensors = tensor_files.load(path)
    del tensors["logits"]
    tensor_files.save(path, tensors | {"logits.tail64": tail})
    with pytest.raises(SetupError, match=r"logits\.tail64"):
        run(packs, "made", mode)


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["official", "fp32_noq"])
def test_logits_kept_as_a_tail_are_compared(mode: str, packs: Path) -> None:
    path = packs / "made" / f"expected_{mode}.safetensors"
    tensors = tensor_files.load(path)
    tensors["logits.tail64"] = tensors.pop("logits")[-5:].clone()
    tensor_files.save(path, tensors)
    assert run(packs, "made", mode).differences == []
    tensors["logits.tail64"][2, 7] += 0.05
    tensor_files.save(path, tensors)
    assert [found.item for found in run(packs, "made", mode).differences] == ["logits"]
