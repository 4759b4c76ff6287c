"""Losses, optimizers and the batched experts do what their formulas say."""

from __future__ import annotations

import pytest
import torch

from reference.model import ReferenceModel, moe
from reference.model.draft import Draft
from reference.model.weights import Weights
from reference.tests.small_checkpoint import CONFIG
from reference.tiny import acceptance, batched_experts, losses, stages
from reference.tiny.initial import initial_values
from reference.tiny.optimizer import Optimizer, Rule, orthogonalised

pytestmark = pytest.mark.ci


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_adam_agrees_with_torch(seed: int) -> None:
    mine, theirs = random(seed, 2, 5, 3), random(seed, 2, 5, 3).requires_grad_()
    mine.requires_grad_()
    ours = Optimizer([("x", mine)], {"x": Rule("adam", 0.01, decay=0.1)}, clip=1e9)
    ours.factor.fill_(1.0)
    torchs = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(4):
        mine.grad = random(seed + step, 2, 5, 3)
        theirs.grad = mine.grad.clone()
        ours.step()
        torchs.step()
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shape", [(2, 16, 40), (2, 40, 16)])
def test_orthogonalised_updates_have_nearly_equal_singular_values(seed: int, shape: tuple[int, ...]) -> None:
    singular = torch.linalg.svdvals(orthogonalised(random(seed, *shape))) / max(1.0, shape[1] / shape[2]) ** 0.5
    assert singular.min() > 0.5 and singular.max() < 1.4


def test_batched_experts_give_the_references_values(seed: int) -> None:
    weights = Weights(initial_values(CONFIG, seed)).at("layers.1.ffn")
    x = random(seed, 2, 9, CONFIG.hidden_size).bfloat16().float()
    routing = moe.route(x, CONFIG.num_experts_per_tok, weights.at("gate"), CONFIG)
    expected = moe.moe(x, routing, weights, CONFIG, stages.TRAINING)
    actual = batched_experts.batched_moe(x, routing, weights, CONFIG, stages.TRAINING)
    torch.testing.assert_close(actual, expected, rtol=2**-7, atol=1e-6)


def test_the_indexer_loss_reaches_the_indexer_alone(seed: int) -> None:
    values = {name: value.requires_grad_() for name, value in initial_values(CONFIG, seed).items()}
    token_map = torch.arange(CONFIG.vocab_size) % CONFIG.engram_compressed_vocab_size
    model = ReferenceModel(CONFIG, values, token_map, stages.TRAINING)
    trace: dict[str, torch.Tensor] = {}
    model.forward(torch.arange(24).reshape(2, 12) % CONFIG.vocab_size, trace=trace)
    losses.indexer_loss(model, trace, 12).backward()
    assert {name for name, value in values.items() if value.grad is not None} == {n for n in values if ".indexer." in n}


def test_balancing_raises_the_bias_of_idle_experts() -> None:
    bias = torch.zeros(3)
    losses.balance_experts(bias, torch.tensor([[True, True, False], [True, False, False]]), torch.tensor(0.5))
    assert bias.tolist() == [-0.5, 0.0, 0.5]


def test_a_draft_that_equals_its_target_has_no_distance_and_full_overlap(seed: int) -> None:
    logits, labels = random(seed, 2, 3, 4, 7), torch.zeros(2, 3, 4, dtype=torch.long)
    parts = losses.draft_losses(Draft(labels, logits, torch.full((2, 3, 4), 20.0)), logits, labels, decay=4.0)
    assert parts.variation < 1e-5 and parts.confidence < 1e-5
    torch.testing.assert_close(parts.overlap, torch.ones(4))


def test_a_cycle_starts_where_the_last_one_ended() -> None:
    # Anchor 0 accepts 2 drafts and commits 3 tokens; anchor 3 accepts none; anchor 4 accepts 1 and runs past the end.
    assert acceptance.tokens_per_cycle(torch.tensor([[2, 9, 9, 0, 1]])) == pytest.approx((3 + 1 + 2) / 3)


def test_calibration_error_is_the_mean_gap_over_bins() -> None:
    predicted, outcome = torch.tensor([0.9, 0.9, 0.1, 0.1]), torch.tensor([1, 0, 0, 0])
    assert acceptance.calibration_error(predicted, outcome) == pytest.approx((0.8 + 0.2) / 4)
