"""Compares discrete choices: selections, candidate blocks, experts, tokens; knows scores, no model.

A choice that differs is a difference unless the scores leave it open: every element in dispute lies within a margin of
the worst element that the recording kept. Those are close calls, counted and listed. Ties resolve to the lower index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equivalence.findings import Findings
from equivalence.tolerances import tolerance


def bf16_step(scores: Tensor) -> Tensor:
    """Size of one bfloat16 step at each finite score: [...] float64, at least the smallest normal one."""
    magnitude = scores.abs().to(torch.float64).clamp(min=2.0**-126)  # [...]
    return torch.exp2(torch.floor(torch.log2(magnitude)) - 7)  # [...]


def float_margin() -> float:
    """How far apart two float32 scores of the same inputs may lie in two correct programs."""
    return tolerance("model.fp32.margin").value


def as_mask(rows: Tensor, width: int) -> Tensor:
    """Row lists with -1 for none, [..., k] integer, as masks [..., width]."""
    mask = torch.zeros(*rows.shape[:-1], width + 1, dtype=torch.bool)  # [..., width+1]
    mask.scatter_(-1, torch.where(rows < 0, width, rows).long(), True)
    return mask[..., :width]  # [..., width]


def is_ascending(rows: Tensor) -> bool:
    """Whether each list is strictly ascending with its -1 entries at the end: [T, k]."""
    if rows.shape[-1] < 2:
        return True
    left, right = rows[..., :-1], rows[..., 1:]  # [T, k-1]
    return bool(((right == -1) | ((left >= 0) & (right > left))).all())


def sets(
    findings: Findings,
    sub_step: str,
    item: str,
    got: Tensor,
    want: Tensor,
    scores: Tensor | None = None,
    margin: Tensor | float = 0.0,
) -> None:
    """Compare chosen sets row by row.

    Args:
        got, want: bool [T, n]; scores: [T, n] that ranked them (None: no row may differ);
        margin: [T, n] or a number, how far from the worst kept score an element counts as open.
    """
    if got.shape != want.shape:
        findings.values(sub_step, item, got, want)
        return
    if scores is None:
        findings.values(sub_step, item, got, want)
        return
    disputed = got != want  # [T, n]
    open_rows = _left_open(disputed, want, scores, margin) & disputed.any(dim=-1)  # [T]
    settled = torch.where(open_rows[:, None], want, got)  # [T, n]
    findings.values(sub_step, item, settled, want)
    for row in open_rows.nonzero().flatten().tolist():
        mine = (got[row] & ~want[row]).nonzero().flatten().tolist()
        theirs = (want[row] & ~got[row]).nonzero().flatten().tolist()
        findings.close_call(f"{item}[{row}]", f"{mine} here, {theirs} recorded, scores within the margin")


def from_candidates(
    findings: Findings,
    sub_step: str,
    item: str,
    got: Tensor,
    want: Tensor,
    scores: Tensor,
    candidates: Tensor,
    block_scores: Tensor,
    margin: Tensor | float,
) -> None:
    """Compare selections made among candidate blocks that were not recorded themselves.

    A row that differs is open where the block cut is: some block lies within the margin of the worst block kept. There
    the recorded selection must hold rows of kept or open blocks only, and leave out no better row of a surely kept one.

    Args:
        got, want: bool [T, n]; scores: [T, n] before the candidates were applied; candidates: bool [T, n];
        block_scores: [T, n], each row's block score, +inf for a forced block.
    """
    cut = torch.where(candidates, block_scores, torch.inf).amin(dim=-1, keepdim=True)  # [T, 1]
    unsure = ((block_scores - cut).abs() <= margin) | (block_scores == cut)  # [T, n]
    inside = (~want | candidates | unsure).all(dim=-1)  # [T]
    worst = torch.where(want, scores, torch.inf).amin(dim=-1, keepdim=True)  # [T, 1]
    better = candidates & ~unsure & ~want & (scores - worst > margin)  # [T, n]
    two_sided = (unsure & ~candidates & (scores > -torch.inf)).any(dim=-1)  # [T]
    open_rows = (got != want).any(dim=-1) & two_sided & inside & ~better.any(dim=-1)  # [T]
    for row in open_rows.nonzero().flatten().tolist():
        findings.close_call(f"{item}[{row}]", "the cut between candidate blocks lies within the margin")
    masked = torch.where(candidates, scores, -torch.inf)  # [T, n]
    sets(findings, sub_step, item, torch.where(open_rows[:, None], want, got), want, masked, margin)


def block_scores(score: Tensor, visible: Tensor, size: int) -> Tensor:
    """The highest score of each row's block, at every row of the block, +inf for the block with the newest visible row.

    Args: score: [T, n], -inf where invisible; visible: int64 [T], how many rows each query sees.
    """
    padded = torch.nn.functional.pad(score, (0, -score.shape[-1] % size), value=-torch.inf)  # [T, blocks·size]
    block = padded.unflatten(-1, (-1, size)).amax(dim=-1)  # [T, blocks]
    spread = block.repeat_interleave(size, dim=-1)[:, : score.shape[-1]]  # [T, n]
    newest = torch.arange(score.shape[-1]) // size == (visible[:, None] - 1) // size  # [T, n]
    return torch.where(newest & (visible[:, None] > 0), torch.inf, spread)  # [T, n]


def tokens(
    findings: Findings,
    item: str,
    logits: Tensor,
    want: Tensor,
    margin: Tensor | float = 0.0,
    chosen: Tensor | None = None,
) -> None:
    """Compare greedy tokens: logits [T, V] against recorded ids [T]; `chosen` [T] defaults to the argmax.

    margin: [T, 1] or a number; a recorded id whose logit is that close to the best one is a close call.
    """
    got = _argmax(logits) if chosen is None else chosen  # [T]
    best = logits.amax(dim=-1)  # [T]
    theirs = logits.gather(-1, want[:, None].long())[:, 0]  # [T]
    limit = margin.reshape(-1) if isinstance(margin, Tensor) else margin
    is_open = (got != want) & (best - theirs <= limit)  # [T]
    findings.values("tokens", item, torch.where(is_open, want, got), want)
    for row in is_open.nonzero().flatten().tolist():
        findings.close_call(
            f"{item}[{row}]", f"{int(got[row])} here, {int(want[row])} recorded, logits within the margin"
        )


def _argmax(logits: Tensor) -> Tensor:
    best = logits == logits.amax(dim=-1, keepdim=True)  # [T, V]
    return best.to(torch.uint8).argmax(dim=-1)  # [T]


def _left_open(disputed: Tensor, want: Tensor, scores: Tensor, margin: Tensor | float) -> Tensor:
    worst = torch.where(want, scores, torch.inf).amin(dim=-1, keepdim=True)  # [T, 1]
    near = (scores - worst).abs() <= margin  # [T, n]
    near |= scores == worst  # infinite scores tie with themselves
    return (near | ~disputed).all(dim=-1)  # [T]
