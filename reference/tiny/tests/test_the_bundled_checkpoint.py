"""The bundled checkpoint is small, whole, alive in every branch, and has learned something."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from reference.checkpoint import Checkpoint, load_checkpoint
from reference.model import ReferenceModel, draft
from reference.numerics import Numerics

pytestmark = pytest.mark.ci

FOLDER = Path(__file__).parents[1]
VERSE = "1 In the beginning God created the heaven and the earth.\n2 And the earth was without form, and void;"


@pytest.fixture(scope="module")
def bundled() -> Checkpoint:
    return load_checkpoint(FOLDER)


@pytest.fixture(scope="module")
def model(bundled: Checkpoint) -> ReferenceModel:
    fast = Numerics(compute_dtype=torch.float32)
    return ReferenceModel(bundled.config, bundled.weights, bundled.token_map, fast)


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor(Tokenizer.from_file(str(FOLDER / "tokenizer.json")).encode(text).ids)


def test_it_takes_less_than_twelve_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*") if path.is_file()) < 12_000_000


def test_every_branch_of_the_architecture_is_alive(bundled: Checkpoint) -> None:
    config = bundled.config
    sources = [config.compress_ratios[layer] for layer in config.kv_source_layer_ids]
    layers = range(config.num_hidden_layers)
    assert {0, 1, 2} <= set(config.compress_ratios) and sources.count(2) >= 2
    assert config.candidate_source_layer_id is not None
    assert config.compress_ratios[config.candidate_source_layer_id] == 1
    assert any(config.uses_candidates(layer) for layer in layers)
    assert any(config.index_source(layer) not in (layer, None) for layer in layers)
    assert len(config.engram_layer_ids) == 2
    assert config.n_routed_experts >= 16 and config.num_experts_per_tok >= 3
    assert (config.num_nextn_predict_layers, config.dspark_block_size) == (3, 5)
    assert config.sliding_window <= 128 and config.max_position_embeddings >= 4096 and config.quantized


def test_it_knows_the_text_it_was_trained_on(model: ReferenceModel) -> None:
    ids = ids_of("Genesis 1\n\n" + VERSE)
    loss = torch.nn.functional.cross_entropy(model.forward(ids[:-1])[-20:], ids[-20:])
    assert loss < 2.0


def test_its_draft_guesses_the_next_token_better_than_chance(model: ReferenceModel) -> None:
    ids = ids_of("Genesis 1\n\n" + VERSE)
    trace: dict[str, torch.Tensor] = {}
    model.forward(ids, trace=trace)
    anchors = torch.arange(4, len(ids) - 2)
    proposed = draft.propose(model, trace["dspark_taps"], ids[anchors + 1], anchors)
    assert (proposed.ids[:, 0] == ids[anchors + 2]).float().mean() > 0.3


def test_special_tokens_agree_with_the_configuration(bundled: Checkpoint) -> None:
    config = bundled.config
    names = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>")
    ids = (config.bos_token_id, config.eos_token_id, config.pad_token_id, config.dspark_noise_token_id)
    assert [ids_of(name).tolist() for name in names] == [[token] for token in ids]
