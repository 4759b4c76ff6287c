"""Form `lengths` of check `batch_invariance`: every prompt length in chunks of one size, logits to the last bit.

One long sequence is computed in one piece, with logits of all rows. Then it is computed in chunks, and for each length
a fork of what is computed takes the prompt's last chunk, whole or cut short, and decodes on: each row must give the
logits of the one piece. The forks of a step have other slots and pages than their origin, which goes on undisturbed.
Knows the layout of the caches; knows no scheduler.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from equivalence.checks.batch_invariance.plans import NUM_SLOTS, PAGE_SIZE, Stage, Tenant
from equivalence.findings import Findings
from equivalence.generators.checkpoints import Voices

DECODED = 2
"""Decode steps behind each prompt: the second of them follows a row that was decoded."""

TOGETHER = NUM_SLOTS - 2
"""Forks in a step, beside their origin's slot and the one that nobody has."""


def run(voices: Voices, tokens: list[int], chunk: int, lengths: Sequence[int], backend: str) -> Findings:
    """Compare the logits after prompts of these lengths, ascending, and after the tokens decoded behind each."""
    findings = Findings()
    stage = Stage(voices, (TOGETHER + 1) * -(-len(tokens) // PAGE_SIZE), len(tokens) + 1, backend)
    whole = stage.admit(tokens)
    want = stage.step("prefill", [whole], [len(tokens)], all_rows=True)  # [T, V]
    stage.evict(whole)
    trunk = stage.admit(tokens)
    forks: dict[int, Tenant] = {}
    for length in lengths:
        while trunk.computed + chunk < length:
            stage.step("prefill", [trunk], [chunk])
        forks[length] = fork(stage, trunk)
        if len(forks) == TOGETHER or length == lengths[-1]:
            _compare(findings, stage, forks, chunk, want)
            forks.clear()
    return findings.close()


def _compare(findings: Findings, stage: Stage, forks: dict[int, Tenant], chunk: int, want: Tensor) -> None:
    """End the prompts of these lengths, decode behind them, compare with the rows of the one piece [T, V]."""
    for step in range(1 + DECODED):
        counts = [1 if step else length - tenant.computed for length, tenant in forks.items()]
        made = stage.step("decode" if step else "prefill", list(forks.values()), counts)  # [R, V]
        for length, logits in zip(forks, made, strict=True):
            row = length - 1 + step
            findings.values("logits", f"prompt of {length} in chunks of {chunk}, row {row}", logits, want[row])
    for tenant in forks.values():
        stage.evict(tenant)


def fork(stage: Stage, origin: Tenant) -> Tenant:
    """A sequence in a slot and pages of its own that has computed what its origin has."""
    made = stage.admit(origin.tokens)
    if origin.fresh:
        return made
    made.pages = [stage.free_pages.pop() for _ in origin.pages]
    made.computed, made.fresh = origin.computed, False
    caches = stage.caches
    pages, slots = caches.geometry.num_pages, caches.geometry.num_slots
    for source in caches.sources.values():
        for tensor in (*source.kv, *source.keys):
            by_page = tensor.view(pages, -1)
            by_page[made.pages] = by_page[origin.pages]
    groups = [source.open_group for source in caches.sources.values() if source.open_group is not None]
    for tensor in (*itertools.chain.from_iterable(caches.rings), *groups, caches.engram_ids):
        by_slot = tensor.view(slots, -1)
        by_slot[made.slot] = by_slot[origin.slot]
    return made
