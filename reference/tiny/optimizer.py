"""AdamW and Muon over stacks of tensors, made of tensor operations only so that a step can be captured.

Knows shapes, gradients and a learning-rate factor. Knows nothing about models.
Sources: AdamW, arXiv 1711.05101; Muon, Keller Jordan 2024 (Newton-Schulz coefficients included), arXiv 2502.16982.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
ADAM_BETAS = (0.9, 0.95)
MOMENTUM = 0.95
EPSILON = 1e-8


@dataclass(frozen=True)
class Rule:
    """How a stack is trained. method: "adam" or "muon"; rate: peak learning rate; decay: decoupled weight decay."""

    method: str
    rate: float
    decay: float = 0.0


def orthogonalised(update: Tensor) -> Tensor:
    """Every matrix of [n, N, K] replaced by (about) its nearest semi-orthogonal one, times sqrt(max(1, N/K))."""
    rows, columns = update.shape[-2:]
    x = update.to(torch.bfloat16) if update.is_cuda else update  # [n, N, K]
    x = x.mT if rows > columns else x  # [n, a, b], a <= b
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)  # [n, a, b]
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT  # [n, a, a]
        x = a * x + (b * gram + c * gram @ gram) @ x  # [n, a, b]
    x = x.mT if rows > columns else x  # [n, N, K]
    return x.to(update.dtype) * max(1.0, rows / columns) ** 0.5  # [n, N, K]


class Optimizer:
    """Updates masters in place.

    Args:
        masters: (label, tensor [n, ...]); rules: the rule of every label.
        clip: largest global norm of the gradient of the Adam stacks.
    """

    def __init__(self, masters: Iterable[tuple[str, Tensor]], rules: dict[str, Rule], clip: float = 1.0) -> None:
        self.masters = dict(masters)
        self.rules = rules
        self.clip = clip
        device = next(iter(self.masters.values())).device
        self.factor = torch.zeros((), device=device)
        self.powers = torch.ones(2, device=device)
        self._betas = torch.tensor(ADAM_BETAS, device=device)
        self.first = {label: torch.zeros_like(master) for label, master in self.masters.items()}
        self.second = {
            label: torch.zeros_like(master) for label, master in self.masters.items() if rules[label].method == "adam"
        }

    @torch.no_grad()
    def step(self) -> None:
        """One update from the masters' gradients; every rate is multiplied by `factor`."""
        self.powers.mul_(self._betas)
        gradients = {label: master.grad for label, master in self.masters.items() if master.grad is not None}
        if len(gradients) != len(self.masters):
            raise ValueError(f"no gradient for {sorted(set(self.masters) - set(gradients))}")
        squares = [gradients[label].square().sum() for label in self.second]
        norm = torch.stack(squares).sum().sqrt() if squares else self.factor.new_zeros(())
        scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        for label, master in self.masters.items():
            rule, gradient, first = self.rules[label], gradients[label], self.first[label]
            if rule.method == "adam":
                second = self.second[label]
                gradient = gradient * scale
                first.lerp_(gradient, 1 - ADAM_BETAS[0])
                second.lerp_(gradient.square(), 1 - ADAM_BETAS[1])
                unbiased = (second / (1 - self.powers[1])).sqrt() + EPSILON
                update = first / (1 - self.powers[0]) / unbiased
            else:
                first.lerp_(gradient, 1 - MOMENTUM)
                update = orthogonalised(gradient.lerp(first, MOMENTUM))
            master.mul_(1 - self.factor * (rule.rate * rule.decay)).sub_(update * (self.factor * rule.rate))

    def zero_gradients(self) -> None:
        """Forget the gradients."""
        for master in self.masters.values():
            master.grad = None

    def state(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, by name."""
        state = {"powers": self.powers}
        for label, master in self.masters.items():
            state[f"master {label}"] = master.detach()
            state[f"first {label}"] = self.first[label]
            if label in self.second:
                state[f"second {label}"] = self.second[label]
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Copy a state of the same run back, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
