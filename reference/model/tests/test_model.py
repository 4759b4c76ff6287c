"""Laws of the reference model that hold for every checkpoint, on small random ones."""

from __future__ import annotations

import pytest
import torch

from reference.checkpoint import load_checkpoint
from reference.model import ReferenceModel, draft
from reference.numerics import UNQUANTIZED, Numerics
from reference.spec import ModelConfig
from reference.tiny.build import random_checkpoint

pytestmark = pytest.mark.ci


def small_config(**changes) -> ModelConfig:
    """Every kind of layer once, windows and selections shorter than the sequences below."""
    fields = {
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "head_dim": 64,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 32,
        "o_lora_rank": 32,
        "o_groups": 2,
        "moe_intermediate_size": 32,
        "swiglu_limit": 0.5,
        "rms_norm_eps": 1e-20,
        "max_position_embeddings": 1024,
        "sliding_window": 12,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 1.5,
        "compress_ratios": (0, 2, 2, 1, 1, 1, 1, 0, 0, 0),
        "kv_source_layer_ids": (1, 3),
        "index_source_layer_ids": (1, 3, 5),
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "index_n_heads": 4,
        "index_head_dim": 64,
        "index_topk": 9,
        "candidate_source_layer_id": 3,
        "candidate_topk_blocks": 4,
        "candidate_block_size": 4,
        "engram_layer_ids": (0, 2),
        "engram_num_embeddings": (1362, 1552),
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 200,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_compressed_vocab_size": 300,
        "num_nextn_predict_layers": 3,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 319,
        "dspark_target_layer_ids": (4, 5, 6),
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    }
    return ModelConfig(**{**fields, **changes})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    random_checkpoint(small_config(), seed=5, folder=folder)
    return load_checkpoint(folder)


@pytest.fixture(scope="module")
def model(checkpoint):
    return ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map)


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 300, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 2, 3, 11, 12, 13, 24, 25, 40])
def test_a_row_depends_on_its_prefix_alone(model, length):
    whole = tokens(48)
    assert torch.equal(model.forward(whole)[:length], model.forward(whole[:length]))


def test_independent_sequences_do_not_see_each_other(model):
    a, b = tokens(33, 2), tokens(33, 3)
    both = model.forward(torch.stack((a, b)))
    assert torch.equal(both[0], model.forward(a)) and torch.equal(both[1], model.forward(b))


def test_running_every_expert_on_every_row_changes_nothing(checkpoint, model):
    everywhere = ReferenceModel(
        checkpoint.config, checkpoint.weights, checkpoint.token_map, Numerics(static_shapes=True)
    )
    assert torch.equal(everywhere.forward(tokens(30)), model.forward(tokens(30)))


@pytest.mark.parametrize("numerics", [Numerics(), UNQUANTIZED], ids=["released", "unquantized"])
def test_every_intermediate_is_named_and_finite_where_visible(checkpoint, numerics):
    trace: dict[str, torch.Tensor] = {}
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map, numerics)
    model.forward(tokens(30), trace=trace)
    layers = range(checkpoint.config.num_hidden_layers)
    assert {f"L{i}.h_ffn" for i in layers} | {"hidden_final", "dspark_taps", "engram_rows"} <= trace.keys()
    assert all(bool(torch.isfinite(v).all()) for k, v in trace.items() if not k.endswith("index_score"))


def test_candidates_hold_the_newest_block_and_bound_the_later_selections(model):
    trace: dict[str, torch.Tensor] = {}
    model.forward(tokens(40), trace=trace)
    mask = trace["L3.candidate_mask"]
    rows = torch.arange(40)
    assert bool(mask[rows, rows].all()) and not bool(mask[39].all())
    assert not bool((trace["L5.selected"] & ~mask).any()) and bool((trace["L3.selected"] & ~mask).any())
    assert trace["L5.selected"].sum(-1).tolist() == [min(p + 1, 9) for p in range(40)]


def cone(config: ModelConfig) -> int:
    """Rows before the last one that its decoder windows can reach, that row included."""
    return (config.num_hidden_layers - config.decoder_start) * (config.sliding_window - 1) + 1


def test_replay_over_the_whole_receptive_field_is_exact_and_a_shorter_one_is_not(model):
    sequence = tokens(96)
    last = model.forward(sequence)[-1]
    assert torch.equal(model.forward(sequence, replay_start=96 - cone(model.config))[-1], last)
    assert not torch.equal(model.forward(sequence, replay_start=96 - 14)[-1], last)


def test_a_draft_reads_its_context_and_block_and_nothing_else(model):
    trace: dict[str, torch.Tensor] = {}
    sequence = tokens(40)
    model.forward(sequence, trace=trace)
    taps, anchors = trace["dspark_taps"], torch.tensor([5, 20, 38])
    together = draft.propose(model, taps, sequence[anchors + 1], anchors)
    for i, p in enumerate(anchors.tolist()):
        first = max(0, p - model.config.sliding_window + 1)
        disturbed = taps.clone()
        disturbed[:first] = 7.0
        disturbed[p + 1 :] = -7.0
        alone = draft.propose(model, disturbed, sequence[p + 1][None], anchors[i : i + 1])
        assert torch.equal(alone.logits[0], together.logits[i]) and torch.equal(alone.ids[0], together.ids[i])
        assert torch.equal(alone.confidence[0], together.confidence[i])


def _constant(start: int) -> draft.Choose:
    return lambda logits, slot: torch.tensor([start + slot])


def test_a_confidence_never_reads_the_token_it_judges(model):
    trace: dict[str, torch.Tensor] = {}
    sequence = tokens(30)
    model.forward(sequence, trace=trace)
    anchor, p = sequence[21][None], torch.tensor([20])
    runs = [draft.propose(model, trace["dspark_taps"], anchor, p, choose=_constant(k)) for k in (10, 200)]
    assert torch.equal(runs[0].confidence[:, 0], runs[1].confidence[:, 0])
    assert not torch.equal(runs[0].confidence[:, 1:], runs[1].confidence[:, 1:])


def test_training_mode_gives_finite_gradients_to_every_used_weight(checkpoint):
    numerics = Numerics(compute_dtype=torch.float32, straight_through=True, static_shapes=True)
    weights = {name: value.clone().requires_grad_() for name, value in checkpoint.weights.items()}
    model = ReferenceModel(checkpoint.config, weights, checkpoint.token_map, numerics)
    trace: dict[str, torch.Tensor] = {}
    sequence = tokens(32)
    loss = model.forward(sequence, trace=trace).logsumexp(-1).mean()
    for layer in checkpoint.config.index_source_layer_ids:
        score = trace[f"L{layer}.index_score"]
        loss = loss + score[score > -torch.inf].mean()
    proposal = draft.propose(model, trace["dspark_taps"], sequence[9:10], torch.tensor([8]))
    (loss + proposal.logits.logsumexp(-1).mean() + proposal.confidence.mean()).backward()
    unused = {name for name, value in weights.items() if value.grad is None}
    assert all(name.endswith("gate.bias") for name in unused)
    assert all(bool(torch.isfinite(value.grad).all()) for name, value in weights.items() if name not in unused)
