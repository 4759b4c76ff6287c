"""The two stages of training, each as one step over static tensors: the backbone, then the draft on a frozen backbone.

Knows the model, its losses and which tensor is trained how. Knows nothing about files, schedules or graphs.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reference.model import ReferenceModel, draft
from reference.numerics import Numerics
from reference.spec.config import ModelConfig
from reference.tiny import losses
from reference.tiny.data import TokenStream
from reference.tiny.optimizer import Optimizer, Rule
from reference.tiny.parameters import DRAFT_PREFIX, MasterWeights, value_specs

TRAINING = Numerics(compute_dtype=torch.float32, straight_through=True, static_shapes=True)

RULES = {
    "embedding": Rule("adam", 0.01),
    "head": Rule("adam", 0.004),
    "table": Rule("adam", 0.01, decay=0.1),
    "vector": Rule("adam", 0.004),
    "router": Rule("adam", 0.004),
    "mixing": Rule("adam", 0.002),
    "matrix": Rule("muon", 0.02, decay=0.05),
}
BALANCE_RATE = 1e-3
ROUTER_BIAS = "router_bias"


def role(name: str) -> str:
    """How a tensor is trained: a key of `RULES`, or `ROUTER_BIAS` for the biases that no gradient reaches."""
    if name.endswith("gate.bias"):
        return ROUTER_BIAS
    if name.endswith("gate.weight"):
        return "router"
    if name.endswith(("engram.embed.weight", "markov_head.embed.weight")):
        return "table"
    if name.endswith(("head.weight", "confidence_head.proj.weight")):
        return "head"
    if name == "embed.weight":
        return "embedding"
    if name.endswith("_fn"):
        return "mixing"
    if name.endswith(("norm.weight", "attn_sink", "_base", "_scale", "q_weight", "k_weight")):
        return "vector"
    return "matrix"


class Stage(abc.ABC):
    """What both stages share: masters, their optimizer, and the biases of the routers. metrics: names of `step`'s."""

    metrics: tuple[str, ...]

    def __init__(self, config: ModelConfig, values: Mapping[str, Tensor], token_map: Tensor, drafting: bool) -> None:
        device = token_map.device
        specs = {n: s for n, s in value_specs(config).items() if n.startswith(DRAFT_PREFIX) == drafting}
        self.config = config
        self.weights = MasterWeights(values, specs, role, device)
        trained = [(label, m) for label, m in self.weights.masters() if not label.startswith(ROUTER_BIAS)]
        self.optimizer = Optimizer(trained, {label: RULES[label.split(" ")[0]] for label, _ in trained})
        self.biases = {
            name: bias
            for label, stack in self.weights.stacks.items()
            if label.startswith(ROUTER_BIAS)
            for name, bias in zip(stack.names, stack.master.detach(), strict=True)
        }
        self.untrained = {n: v.to(device) for n, v in values.items() if n not in specs}
        self.model = ReferenceModel(config, {n: v.to(device) for n, v in values.items()}, token_map, TRAINING)

    @abc.abstractmethod
    def batch(self, stream: TokenStream, rng: np.random.Generator, count: int, length: int) -> tuple[np.ndarray, ...]:
        """Inputs of one step, drawn from `count` windows of `length` tokens."""

    @abc.abstractmethod
    def step(self, *inputs: Tensor) -> Tensor:
        """One update; returns the metrics, one scalar each."""

    def update(self, loss: Tensor, chosen: Mapping[str, Tensor]) -> None:
        """Backward pass, optimizer step, load balancing. chosen: bool [..., E] by the name of the router's bias."""
        self.optimizer.zero_gradients()
        loss.backward()
        self.optimizer.step()
        for name, experts in chosen.items():
            losses.balance_experts(self.biases[name], experts, BALANCE_RATE * self.optimizer.factor)

    def state(self) -> dict[str, Tensor]:
        """Masters, moments and router biases by name."""
        return self.optimizer.state() | {f"bias {name}": bias for name, bias in self.biases.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state()` of an earlier run of the same stage."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    @torch.no_grad()
    def model_values(self) -> dict[str, Tensor]:
        """The stored values of the whole model, as a checkpoint holds them."""
        return self.untrained | self.weights.values()


class BackboneStage(Stage):
    """Language modelling, with the indexer's own loss and balanced experts."""

    metrics = ("loss", "indexer")

    def __init__(self, config: ModelConfig, values: Mapping[str, Tensor], token_map: Tensor) -> None:
        super().__init__(config, values, token_map, drafting=False)

    def batch(self, stream: TokenStream, rng: np.random.Generator, count: int, length: int) -> tuple[np.ndarray, ...]:
        """Inputs of one step: ids [count, length + 1]."""
        return (stream.windows(rng, count, length + 1),)

    def step(self, *inputs: Tensor) -> Tensor:
        """One update; returns the metrics, [2]."""
        (ids,) = inputs
        model = self.model.with_weights(self.weights.values())
        trace: dict[str, Tensor] = {}
        logits = model.forward(ids[:, :-1], trace=trace)  # [B, T, V]
        language = losses.cross_entropy(logits, ids[:, 1:])
        index = losses.indexer_loss(model, trace, ids.shape[1] - 1)
        layers = range(self.config.num_hidden_layers)
        self.update(language + index, {f"layers.{i}.ffn.gate.bias": trace[f"L{i}.chosen"] for i in layers})
        return torch.stack((language.detach(), index.detach()))


class DraftStage(Stage):
    """DSpark's draft blocks and heads on a frozen backbone, teacher-forced on the corpus."""

    metrics = ("loss", "nll", "variation", "confidence", "overlap1", "overlap5")
    decay = 4.0
    anchors = 192

    def __init__(self, config: ModelConfig, values: Mapping[str, Tensor], token_map: Tensor) -> None:
        super().__init__(config, values, token_map, drafting=True)

    def batch(self, stream: TokenStream, rng: np.random.Generator, count: int, length: int) -> tuple[np.ndarray, ...]:
        """Inputs of one step: ids [count, length + 1] and anchors [A], the last processed position of each block."""
        last = length - self.config.dspark_block_size - 1
        anchors = np.sort(rng.permutation(last + 1)[: self.anchors])  # [A]
        return stream.windows(rng, count, length + 1), anchors

    def losses(self, ids: Tensor, anchors: Tensor, routes: dict[str, Tensor] | None = None) -> losses.DraftLosses:
        """Losses of the blocks that start at the anchors. routes: receives the experts of every block row."""
        with torch.no_grad():
            trace: dict[str, Tensor] = {}
            z = self.model.with_weights(self.untrained).hidden(ids[:, :-1], trace=trace)  # [B, T, D]
        model = self.model.with_weights(self.untrained | self.weights.values())
        slots = anchors[:, None] + torch.arange(self.config.dspark_block_size, device=ids.device)  # [A, S]
        labels = ids[:, slots + 2]  # [B, A, S]
        previous = ids[:, slots + 1]  # [B, A, S]
        with torch.no_grad():
            target = model.logits(z[:, slots + 1])  # [B, A, S, V]
        proposed = draft.propose(
            model, trace["dspark_taps"], ids[:, anchors + 1], anchors, previous=previous, trace=routes
        )
        return losses.draft_losses(proposed, target, labels, self.decay)

    def step(self, *inputs: Tensor) -> Tensor:
        """One update; returns the metrics, [6]."""
        ids, anchors = inputs
        routes: dict[str, Tensor] = {}
        parts = self.losses(ids, anchors, routes)
        blocks = range(self.config.num_nextn_predict_layers)
        self.update(parts.total, {f"mtp.{m}.ffn.gate.bias": routes[f"M{m}.chosen"] for m in blocks})
        scalars = [part.detach() for part in parts[:4]]
        return torch.stack((*scalars, parts.overlap[0], parts.overlap[-1]))
