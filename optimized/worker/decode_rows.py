"""Rows of a decode step, expanded on the device from a few numbers a request.

A request's rows are its newest token, the anchor, and the drafts that are to be verified. Where the step before is in
flight, token, drafts and position are read from that step's results: the plan assumes that all drafts are kept, and
what was refused is taken off here. Every shape follows from the host's numbers. Knows the plan's layout; knows nothing
about caches or about how drafts are judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from optimized.ops.verification_lengths import select_lengths
from reference.spec.errors import EngineError

if TYPE_CHECKING:
    from optimized._core import StepPlan

#: Numbers of a request before its drafts, in their order.
REQUEST_FIELDS = ("slot", "replay_start", "position", "most", "longest", "source", "assumed", "live", "anchor")
_UNLIMITED = 2**62


@dataclass(frozen=True)
class BlockResults:
    """What a step leaves on the device for the next one, by index of the request in its plan.

    anchors: [R'] int64 newest token. accepted: [R'] int64 drafts that were kept. drafts: [R', n] int64 that follow the
    anchors. survival: [R', n] float32 of these drafts. assumed: [R'] int64 on the host, drafts that its plan had.
    """

    anchors: torch.Tensor
    accepted: torch.Tensor
    drafts: torch.Tensor
    survival: torch.Tensor
    assumed: NDArray[np.int64]


@dataclass(frozen=True)
class BlockLimits:
    """What bounds the drafts of a decode step besides its plan.

    longest: [R] int64 tokens that each sequence may have. budget: drafts that are verified over all requests, None: as
    many as the plan has. survival: [R, n] float32 of the drafts that are on the host; read with a budget only.
    """

    longest: NDArray[np.int64]
    budget: int | None = None
    survival: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class DecodeRows:
    """Rows of a decode step, [rows] int64 each as in `StepInputs`, and by place of the request [Q]:

    lengths: drafts that are verified. anchors: the position of the first row.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    row_request: torch.Tensor
    slots: torch.Tensor
    first_rows: torch.Tensor
    first_positions: torch.Tensor
    end_positions: torch.Tensor
    replay_starts: torch.Tensor
    lengths: torch.Tensor
    anchors: torch.Tensor


def request_fields(
    plan: StepPlan, places: int, nextn: int, longest: NDArray[np.int64] | None, previous: BlockResults | None
) -> NDArray[np.int64]:
    """[REQUEST_FIELDS and nextn drafts, places] int64 of a decode plan; places beyond its requests are not live.

    Raises:
        EngineError: the plan leaves tokens open, and there is no `previous`.
    """
    count = plan.num_requests
    starts = np.asarray(plan.query_start, dtype=np.int64)
    source, first = np.asarray(plan.previous_rows, dtype=np.int64), starts[:-1]
    drafts = np.diff(starts) - 1
    fields = np.zeros((len(REQUEST_FIELDS) + nextn, places), dtype=np.int64)
    by_name = dict(zip(REQUEST_FIELDS, fields, strict=False))
    by_name["slot"][:count], by_name["replay_start"][:count] = plan.slots, plan.replay_starts
    by_name["position"][:count], by_name["most"][:count] = plan.positions[first], drafts
    by_name["longest"][:count] = _UNLIMITED if longest is None else longest
    by_name["source"][:] = -1
    by_name["source"][:count] = source
    if (source >= 0).any():
        if previous is None:
            raise EngineError(f"step {plan.step_id} needs tokens of a step in flight, but there is none")
        by_name["assumed"][:count] = np.where(source >= 0, previous.assumed[source], 0)
    by_name["live"][:count] = 1
    by_name["anchor"][:count] = plan.tokens[first]
    for slot in range(int(drafts.max(initial=0))):
        has = drafts > slot
        fields[len(REQUEST_FIELDS) + slot, :count][has] = plan.tokens[first[has] + 1 + slot]
    return fields


def expand(
    fields: torch.Tensor,
    rows: int,
    previous: BlockResults | None,
    budget: int | None = None,
    survival: torch.Tensor | None = None,
) -> DecodeRows:
    """The rows of a step: request after request, then padding rows at position -1 in slot 0.

    Args:
        fields: [F, Q] int64, of `request_fields`. rows: how many; all that the plan and the budget ask for, at least.
        previous: the step in flight. budget: see `BlockLimits`. survival: [Q, n] float32, with a budget.
    """
    one = dict(zip(REQUEST_FIELDS, fields, strict=False))
    drafts, position, anchor = fields[len(REQUEST_FIELDS) :].T, one["position"], one["anchor"]  # [Q, n], [Q], [Q]
    if previous is not None:
        flies, source = one["source"] >= 0, one["source"].clamp(min=0)  # [Q]
        position = torch.where(flies, position - one["assumed"] + previous.accepted[source], position)
        anchor = torch.where(flies, previous.anchors[source], anchor)
        drafts = torch.where(flies[:, None], previous.drafts[source], drafts)
        if survival is not None:
            survival = torch.where(flies[:, None], previous.survival[source], survival)
    lengths = torch.minimum(one["most"], one["longest"] - position - 2).clamp(min=0)  # [Q]
    if budget is not None and survival is not None:
        lengths = select_lengths(survival, lengths, budget)
    counts = one["live"] * (1 + lengths)  # [Q]
    return _rows(one, position, torch.cat((anchor[:, None], drafts), dim=1), lengths, counts, rows)


def _rows(
    one: dict[str, torch.Tensor],
    position: torch.Tensor,
    blocks: torch.Tensor,
    lengths: torch.Tensor,
    counts: torch.Tensor,
    rows: int,
) -> DecodeRows:
    """Blocks [Q, 1 + n] of which the first `counts` tokens are rows, laid out one after another."""
    ends, row = torch.cumsum(counts, 0), torch.arange(rows, device=counts.device)  # [Q], [rows]
    place = torch.searchsorted(ends, row, right=True)  # [rows], Q for padding rows
    real, request = place < len(counts), place.clamp(max=len(counts) - 1)
    first = torch.where(real, (ends - counts)[request], row)
    offset = row - first

    def of_request(values: torch.Tensor) -> torch.Tensor:
        return torch.where(real, values[request], 0)

    return DecodeRows(
        tokens=torch.where(real, blocks[request, offset], 0),
        positions=torch.where(real, position[request] + offset, -1),
        row_request=place,
        slots=of_request(one["slot"]),
        first_rows=first,
        first_positions=of_request(position),
        end_positions=of_request(position + counts),
        replay_starts=of_request(one["replay_start"]),
        lengths=lengths,
        anchors=position,
    )
