"""The golden packs load: DeepSeek's own tensor names, shapes, dtypes and token maps are the ones planned here."""

import json
import os
from pathlib import Path

import pytest
import torch

from reference.checkpoint import load_checkpoint, save_checkpoint
from reference.spec import ModelConfig

SHIPPED = Path(__file__).parents[2] / "equivalence" / "golden"
FOLDER = Path(os.environ.get("COUNTERPOINT_GOLDEN") or SHIPPED)
PACKS = sorted(path.parent for path in FOLDER.glob("*/model.safetensors"))

pytestmark = [pytest.mark.ci, pytest.mark.parametrize("pack", PACKS, ids=lambda pack: pack.name)]


def test_pack_loads_with_its_token_map(pack: Path) -> None:
    checkpoint = load_checkpoint(pack)
    assert ModelConfig.from_dict(checkpoint.config.to_dict()) == checkpoint.config
    assert all(tensor.dtype == torch.float32 for tensor in checkpoint.weights.values())
    if checkpoint.token_map is not None:
        assert checkpoint.token_map.tolist() == json.loads((pack / "engram_token_map.json").read_text())


def test_pack_survives_a_round_trip(pack: Path, tmp_path: Path) -> None:
    first = load_checkpoint(pack)
    save_checkpoint(tmp_path, first.config, first.weights, first.tokenizer_path, max_shard_bytes=1_000_000)
    second = load_checkpoint(tmp_path)
    assert [name for name in first.weights if not torch.equal(first.weights[name], second.weights[name])] == []
