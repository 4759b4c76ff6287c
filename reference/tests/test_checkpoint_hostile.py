"""Every hostile checkpoint is refused with a `CheckpointError` that names the tensor and the file."""

import json
from pathlib import Path

import numpy as np
import pytest

from reference.checkpoint import load_checkpoint
from reference.spec import CheckpointError
from reference.tests.hostile_checkpoints import CASES, SINGLE, Hostile, write_hostile_checkpoint
from reference.tests.small_checkpoint import write_small_checkpoint

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("hostile", CASES, ids=lambda hostile: hostile.name)
def test_hostile_checkpoint_is_refused_by_name(hostile: Hostile, tmp_path: Path) -> None:
    folder = write_hostile_checkpoint(hostile, tmp_path / "checkpoint")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    assert not [part for part in hostile.says if part not in str(caught.value)], str(caught.value)


def test_no_damage_to_the_header_ends_in_another_error(tmp_path: Path, rng: np.random.Generator) -> None:
    path = write_small_checkpoint(tmp_path) / SINGLE
    intact = path.read_bytes()
    end = 8 + int.from_bytes(intact[:8], "little")
    outcomes = {"refused": 0, "harmless": 0}
    for _ in range(300):
        damaged = bytearray(intact)
        for at in rng.integers(0, end, size=rng.integers(1, 4)):
            damaged[at] = rng.integers(0, 256) if rng.random() < 0.5 else ord(rng.choice(list('0123456789-[]{}",:.e ')))
        path.write_bytes(damaged)
        try:
            load_checkpoint(tmp_path)
            outcomes["harmless"] += 1
        except CheckpointError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 250, json.dumps(outcomes)


def test_folder_that_is_absent_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: is not a folder"):
        load_checkpoint(tmp_path / "nowhere")
