"""Which drafts of one request's block are kept, and which token follows them: greedy, coupled and ratio rules.

Knows rows of logits, the drafts and what they were drawn from; knows nothing about models, batches or how many drafts
are worth verifying. Drafts are judged in order; the first rejection ends the block, and so does an accepted token that
ends the completion. Row k is processed with the earlier drafts of the block in its counts.

* greedy (temperature 0, under either rule): a draft is kept if it is the row's argmax.
* coupled: drafts and target are argmaxes of their own rows plus the *same* noise (role TARGET, the token's position).
  A draft is kept if the target would have drawn it, so the text is that of decoding without drafts.
* ratio: kept with probability min(1, p / q) by noise of the role ACCEPT; else a token of the residual max(p − α·q, 0)
  by noise of the role RESIDUAL. Drafts come from noise of the role DRAFT. α = 1 is exact.

Every committed token follows the target's law. Source: serving specification §1.1, §1.7; Leviathan et al.,
arXiv 2211.17192; Daliri, Musco, Suresh, arXiv 2408.07978 (coupled).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from reference import sampler
from reference.adjustments import Context
from reference.sampler import Role
from reference.spec.sampling import SamplingParams
from reference.spec.speculation import Verification

#: Residual mass at or below which a rejection can only come from rounding.
EMPTY_RESIDUAL = 1e-8
#: DeepInfer's α: its residual is never empty, and its law is off the target's by at most 5e-5 a token.
PENALISED = math.exp(-5e-5)


class Source(Protocol):
    """Where random decisions come from (`sampler.Noise`)."""

    def draws(self, row: Tensor, position: int, role: Role) -> int:
        """A token of the softmax of a row [V]."""

    def accepts(self, position: int, target: float, draft: float) -> bool:
        """True with probability min(1, target / draft)."""


@dataclass(frozen=True)
class Proposal:
    """Drafts and the rows [V] float64, −inf where masked or filtered, that each was drawn from."""

    tokens: list[int]
    rows: list[Tensor]


@dataclass(frozen=True)
class Verdict:
    """tokens: committed, at least one. accepted: how many of them are drafts. rows: [V], the target's for each."""

    tokens: list[int]
    accepted: int
    rows: list[Tensor]


def draft_role(rule: Verification) -> Role:
    """The noise that drafts are drawn with."""
    return Role.TARGET if rule == "coupled" else Role.DRAFT


def draft_row(logits: Tensor, params: SamplingParams) -> Tensor:
    """What a draft is drawn from, a row that nothing stands before: bias, temperature, filters: [V] -> [V] float64.

    Raises:
        RequestError: nothing can be drawn from the row, before or after the bias.
    """
    return sampler.processed(logits, params, Context())  # [V]


def choose(row: Tensor, params: SamplingParams, position: int, role: Role, source: Source) -> int:
    """A token from a processed row [V]: the argmax of a greedy request, else a draw."""
    return sampler.lowest_argmax(row) if sampler.is_greedy(params) else source.draws(row, position, role)


def verify(
    rule: Verification,
    logits: Tensor,
    proposal: Proposal,
    params: SamplingParams,
    context: Context,
    source: Source,
    alpha: float = 1.0,
) -> Verdict:
    """Judge a block.

    Args:
        logits: [L+1, V], the target's: row k follows the context and k drafts.
        proposal: L drafts; L may be less than was drafted, and 0.
        context: before the first draft.
        alpha: share of q that the residual takes off; below 1 it is DeepInfer's.

    Raises:
        RequestError: a row that is reached has nothing to draw from.
    """
    rows: list[Tensor] = []
    for k, draft in enumerate(proposal.tokens):
        here = context.after(proposal.tokens[:k])
        row = sampler.processed(logits[k], params, here)  # [V]
        rows.append(row)
        kept, token = _judge(rule, row, proposal.rows[k], draft, params, here.position, source, alpha)
        if not kept:
            return Verdict([*proposal.tokens[:k], token], k, rows)
        if draft in context.ends:
            return Verdict(proposal.tokens[: k + 1], k + 1, rows)
    count = len(proposal.tokens)
    here = context.after(proposal.tokens)
    bonus = sampler.processed(logits[count], params, here)  # [V]
    token = choose(bonus, params, here.position, Role.TARGET, source)
    return Verdict([*proposal.tokens, token], count, [*rows, bonus])


def _judge(
    rule: Verification,
    row: Tensor,
    draft_row: Tensor,
    draft: int,
    params: SamplingParams,
    position: int,
    source: Source,
    alpha: float,
) -> tuple[bool, int]:
    """Whether the draft is kept, and the token that is committed in its place."""
    if rule == "coupled" or sampler.is_greedy(params):
        token = choose(row, params, position, Role.TARGET, source)
        return token == draft, token
    p = torch.softmax(row, dim=-1)  # [V]
    q = torch.softmax(draft_row, dim=-1)  # [V]
    if source.accepts(position, float(p[draft]), float(q[draft])):
        return True, draft
    return False, source.draws(residual(p, q, alpha), position, Role.RESIDUAL)


def residual(p: Tensor, q: Tensor, alpha: float = 1.0) -> Tensor:
    """Row [V] of logits, the logarithms of max(p − α·q, 0); those of p where this is empty. p, q: [V] float64."""
    rest = (p - alpha * q).clamp(min=0)  # [V]
    return torch.log(rest if rest.sum() > EMPTY_RESIDUAL else p)  # [V]
