"""The quantised checkpoint is the trained model, and an interrupted run goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from reference.checkpoint import load_checkpoint, save_checkpoint
from reference.spec.token_map import engram_token_map
from reference.tests.small_checkpoint import CONFIG
from reference.tiny.build import random_checkpoint
from reference.tiny.data import TokenStream
from reference.tiny.initial import initial_values
from reference.tiny.parameters import MasterWeights, round_fp8_tiles, value_specs
from reference.tiny.stages import BackboneStage, DraftStage, Stage, role

pytestmark = pytest.mark.ci

STAGES = (BackboneStage, DraftStage)


def make_stage(kind: type[BackboneStage] | type[DraftStage], seed: int) -> Stage:
    token_map = torch.arange(CONFIG.vocab_size) % CONFIG.engram_compressed_vocab_size
    stage = kind(CONFIG, initial_values(CONFIG, seed), token_map)
    stage.optimizer.factor.fill_(1.0)
    return stage


def batches(stage: Stage, seed: int, count: int) -> list[list[torch.Tensor]]:
    rng = np.random.default_rng(seed)
    stream = TokenStream(rng.integers(0, CONFIG.vocab_size, 200).astype(np.uint16), np.array([0, 50, 120]))
    return [[torch.from_numpy(array) for array in stage.batch(stream, rng, 2, 24)] for _ in range(count)]


@pytest.mark.parametrize("kind", STAGES)
def test_the_saved_values_are_those_of_the_last_step(kind: type, seed: int, tmp_path: Path) -> None:
    config = random_checkpoint(CONFIG, seed, tmp_path)
    stage = make_stage(kind, seed)
    for batch in batches(stage, seed, 2):
        stage.step(*batch)
    trained = stage.model_values()
    save_checkpoint(tmp_path, config, trained, tmp_path / "tokenizer.json")
    loaded = load_checkpoint(tmp_path).weights
    changed = [name for name in stage.weights.values() if not torch.equal(loaded[name], trained[name])]
    assert not changed


@pytest.mark.parametrize("kind", STAGES)
def test_a_resumed_run_equals_an_uninterrupted_one(kind: type, seed: int) -> None:
    whole, first, second = (make_stage(kind, seed) for _ in range(3))
    steps = batches(whole, seed, 3)
    for batch in steps:
        whole.step(*batch)
    first.step(*steps[0])
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    for batch in steps[1:]:
        second.step(*batch)
    assert all(torch.equal(tensor, second.state()[name]) for name, tensor in whole.state().items())


@pytest.mark.parametrize("kind", STAGES)
def test_a_stage_trains_its_own_part_and_nothing_else(kind: type, seed: int) -> None:
    stage = make_stage(kind, seed)
    before = stage.model_values()
    stage.step(*batches(stage, seed, 1)[0])
    moved = {name for name, value in stage.model_values().items() if not torch.equal(value, before[name])}
    drafting = kind is DraftStage
    assert moved and all(name.startswith("mtp.") == drafting for name in moved)


def test_stored_values_carry_the_gradient_straight_to_the_masters(seed: int) -> None:
    specs = value_specs(CONFIG)
    weights = MasterWeights(initial_values(CONFIG, seed), specs, role, torch.device("cpu"))
    sums = [(index + 1) * value.sum() for index, value in enumerate(weights.values().values())]
    torch.stack(sums).sum().backward()
    for _, master in weights.masters():
        assert master.grad is not None
        each = master.grad.flatten(1)
        assert torch.equal(each, each[:, :1].expand_as(each))


def test_stacked_tiles_round_like_single_matrices(seed: int) -> None:
    stack = (
        torch.randn(3, 64, 96, generator=torch.Generator().manual_seed(seed))
        * torch.tensor([1, 1e-3, 50])[:, None, None]
    )
    assert torch.equal(round_fp8_tiles(stack), torch.cat([round_fp8_tiles(matrix[None]) for matrix in stack]))


def test_a_random_checkpoint_is_a_function_of_its_seed(tmp_path: Path, seed: int) -> None:
    for folder, chosen in (("a", seed), ("b", seed), ("c", seed + 1)):
        random_checkpoint(CONFIG, chosen, tmp_path / folder)
    a, b, c = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in "abc")
    assert a == b != c


def test_a_random_checkpoint_has_a_tokenizer_that_fits(tmp_path: Path, seed: int) -> None:
    config = random_checkpoint(CONFIG, seed, tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.token_map is not None
    token_map = engram_token_map(tmp_path / "tokenizer.json", config.vocab_size)
    assert loaded.config == config and len(token_map) == config.vocab_size
    assert loaded.token_map.tolist() == token_map.tolist()
