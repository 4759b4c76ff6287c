"""What changes one row of logits before anything is drawn from it: bias, penalties, masks; and what they count.

Knows token ids and one row; knows nothing about temperature, filters, noise or the model. −inf stays −inf.
Source: serving specification §5.3, §5.5; the repetition penalty is that of CTRL (Keskar et al., 2019), §4.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Grammar = Callable[[Sequence[int]], Tensor]
"""Output ids so far -> bool [V], the ids that may follow."""


@dataclass(frozen=True)
class Context:
    """What stands before the token to be drawn.

    prompt, output: token ids; in a block under verification the output holds the earlier drafts too.
    ends: ids that end a completion; they are not drawn before `min_tokens`.
    grammar: the language that the output must stay in; None: any.
    """

    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    ends: Collection[int] = frozenset()
    grammar: Grammar | None = None

    @property
    def position(self) -> int:
        """Index of the token to be drawn in prompt + output."""
        return len(self.prompt) + len(self.output)

    def after(self, tokens: Iterable[int]) -> Context:
        """The context once these tokens have been appended to the output."""
        return replace(self, output=[*self.output, *tokens])


def add_bias(logits: Tensor, bias: Mapping[int, float]) -> Tensor:
    """Each named token's bias added to its logit: [V] -> [V]."""
    ids = torch.tensor(list(bias), dtype=torch.long)  # [n]
    values = torch.tensor(list(bias.values()), dtype=logits.dtype)  # [n]
    return logits.index_put((ids,), logits[ids] + values)  # [V]


def penalize_repetition(logits: Tensor, seen: Iterable[int], penalty: float) -> Tensor:
    """Tokens of prompt or output, once each: z / penalty where z > 0, else z · penalty: [V] -> [V]."""
    ids = torch.tensor(sorted(set(seen)), dtype=torch.long)  # [n]
    z = logits[ids]  # [n]
    return logits.index_put((ids,), torch.where(z > 0, z / penalty, z * penalty))  # [V]


def penalize_frequency(logits: Tensor, output: Iterable[int], penalty: float) -> Tensor:
    """z − penalty · how often the output holds the token: [V] -> [V]."""
    counts = Counter(output)
    ids = torch.tensor(list(counts), dtype=torch.long)  # [n]
    times = torch.tensor(list(counts.values()), dtype=logits.dtype)  # [n]
    return logits.index_put((ids,), logits[ids] - penalty * times)  # [V]


def penalize_presence(logits: Tensor, output: Iterable[int], penalty: float) -> Tensor:
    """z − penalty for every token that the output holds: [V] -> [V]."""
    ids = torch.tensor(sorted(set(output)), dtype=torch.long)  # [n]
    return logits.index_put((ids,), logits[ids] - penalty)  # [V]


def mask_padding(logits: Tensor, vocab_size: int) -> Tensor:
    """−inf at the ids that no tokenizer has, those from `vocab_size` on: [..., V] -> [..., V]."""
    ids = torch.arange(logits.shape[-1], device=logits.device)  # [V]
    return logits.masked_fill(ids >= vocab_size, -torch.inf)  # [..., V]


def keep_allowed(logits: Tensor, allowed: Tensor) -> Tensor:
    """−inf where the grammar allows no token. allowed: bool [V]. [V] -> [V]"""
    return logits.masked_fill(~allowed, -torch.inf)  # [V]


def ban(logits: Tensor, token_ids: Iterable[int]) -> Tensor:
    """−inf at the given ids; ids outside the vocabulary have no effect: [V] -> [V]."""
    banned = [token for token in token_ids if 0 <= token < logits.numel()]
    return logits.index_fill(-1, torch.tensor(banned, dtype=torch.long), -torch.inf)  # [V]
