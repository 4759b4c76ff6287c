"""Form `plans` of check `batch_invariance`: the worker under step plans made by hand, logits compared to the last bit.

Once the sequence runs undisturbed: prefill in one piece, then a decode step for each token. Then every row that gave
logits is computed again as the last row of a prefill: preempted before every token, in random chunks, in another slot
and other pages each time, beside companions that take its old ones, with everything else poisoned. Knows the worker and
the layout of a plan; knows no scheduler.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equivalence.findings import Findings
from equivalence.generators.batches import Request
from equivalence.generators.checkpoints import Voices
from optimized import platforms
from optimized.config import EngineConfig
from optimized.model.caches import Caches
from optimized.worker.worker import Worker

NUM_SLOTS = 8

PAGE_SIZE = 24

MOST_ROWS = 1024

CHUNKS = (1, 3, 5, 16, 31, 128)


@dataclass
class Plan:
    """A step plan as the worker reads it; the fields are those of `optimized._core.StepPlan`."""

    kind: str
    request_ids: NDArray[np.int64]
    slots: NDArray[np.int32]
    query_start: NDArray[np.int32]
    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    kv_lens: NDArray[np.int32]
    page_table: NDArray[np.int32]
    sample_rows: NDArray[np.int32]
    fresh: NDArray[np.bool_]
    replay_starts: NDArray[np.int32]
    previous_rows: NDArray[np.int32]
    step_id: int = 1

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.slots)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.query_start[-1])


@dataclass
class Tenant:
    """One sequence in the caches. computed: rows that are in them; fresh: its slot is new."""

    tokens: list[int]
    slot: int
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    fresh: bool = True


def make_plan(kind: str, tenants: list[Tenant], counts: list[int]) -> Plan:
    """The step that computes the next `counts` rows of each tenant."""
    ends = [tenant.computed + count for tenant, count in zip(tenants, counts, strict=True)]
    starts = np.cumsum([0, *counts])
    width = max(1, *(len(tenant.pages) for tenant in tenants))
    spans = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    rows = [[tenant.tokens[place] for place in span] for tenant, span in zip(tenants, spans, strict=True)]
    return Plan(
        kind,
        np.arange(len(tenants), dtype=np.int64),
        np.array([tenant.slot for tenant in tenants], dtype=np.int32),
        starts.astype(np.int32),
        np.concatenate(spans).astype(np.int64),
        np.array([token for row in rows for token in row], dtype=np.int64),
        np.array(ends, dtype=np.int32),
        np.array([tenant.pages + [0] * (width - len(tenant.pages)) for tenant in tenants], dtype=np.int32),
        (starts[1:] - 1).astype(np.int32),
        np.array([tenant.fresh for tenant in tenants]),
        np.zeros(len(tenants), dtype=np.int32),
        np.full(len(tenants), -1, dtype=np.int32),
    )


class Stage:
    """A worker and what its slots and pages hold."""

    def __init__(self, voices: Voices, pages: int, longest: int, backend: str) -> None:
        config = EngineConfig(
            max_num_seqs=NUM_SLOTS - 1,
            max_num_batched_tokens=MOST_ROWS,
            max_model_len=longest,
            page_size=PAGE_SIZE,
            num_pages=1 + pages,
            device=backend,
        )
        self._worker = Worker(voices.folder, config.resolved(voices.model.config, platforms.resolve(backend)))
        self.free_pages = list(range(1, 1 + pages))
        self.free_slots = list(range(1, NUM_SLOTS))
        self.tenants: list[Tenant] = []

    def admit(self, tokens: list[int]) -> Tenant:
        """A sequence in the slot freed last, without pages."""
        tenant = Tenant(tokens, self.free_slots.pop())
        self.tenants.append(tenant)
        return tenant

    def evict(self, tenant: Tenant) -> None:
        """Take back its slot and pages; the one freed last is handed out first."""
        self.tenants.remove(tenant)
        self.free_slots.append(tenant.slot)
        self.free_pages += tenant.pages

    @property
    def caches(self) -> Caches:
        """What the worker's slots and pages lie in."""
        return self._worker._runner._caches

    def step(self, kind: str, tenants: list[Tenant], counts: list[int], all_rows: bool = False) -> Tensor:
        """Compute rows; logits [R, V] after the last row of each tenant, or [N, V] after every row of a single one.

        They are on the CPU. All that nobody owns is poisoned before.
        """
        for tenant, count in zip(tenants, counts, strict=True):
            missing = -(-(tenant.computed + count) // PAGE_SIZE) - len(tenant.pages)
            tenant.pages += [self.free_pages.pop() for _ in range(missing)]
        used = [page for tenant in self.tenants for page in tenant.pages]
        slots = [tenant.slot for tenant in self.tenants]
        self._worker.poison(np.array(slots, dtype=np.int64), np.array(used, dtype=np.int64))
        before = np.arange(counts[0] - 1, dtype=np.int64) if all_rows else None
        logits = self._worker.execute(make_plan(kind, tenants, counts), before)  # type: ignore[arg-type]
        logits = (logits.roll(-1, 0) if all_rows else logits).cpu()  # the last row's came first
        for tenant, count in zip(tenants, counts, strict=True):
            tenant.computed += count
            tenant.fresh = False
        return logits


def run(voices: Voices, probe: Request, companions: list[Request], seed: int, backend: str) -> Findings:
    """Compare the logits of every output token's row between the two runs; the output is drawn, not generated."""
    findings, rng = Findings(), random.Random(seed)
    prompt, count = list(probe["prompt"]), probe["params"]["max_tokens"]
    tokens = prompt + [rng.choice(prompt) for _ in range(count - 1)]
    others = [list(each["prompt"]) for each in companions]
    longest = max(len(tokens), *map(len, others)) + 1
    stage = Stage(voices, (len(others) + 2) * -(-longest // PAGE_SIZE), longest, backend)
    want = _undisturbed(stage, tokens, len(prompt))
    for number, logits in enumerate(want):
        got = _again(stage, tokens[: len(prompt) + number], others, rng)
        findings.values("logits", f"row {len(prompt) + number - 1}, preempted {number + 1} times", got, logits)
    return findings.close()


def _undisturbed(stage: Stage, tokens: list[int], prompt: int) -> list[Tensor]:
    """Prefill in one piece, then a decode step for each further token: the last row's logits [V] of every step."""
    tenant = stage.admit(tokens)
    rows = [stage.step("prefill", [tenant], [prompt])[0].clone()]
    while tenant.computed < len(tokens):
        rows.append(stage.step("decode", [tenant], [1])[0].clone())
    stage.evict(tenant)
    return rows


def _again(stage: Stage, tokens: list[int], others: list[list[int]], rng: random.Random) -> Tensor:
    """Logits [V] after the last token, computed from nothing among companions that come and go."""
    rng.shuffle(stage.free_slots)
    rng.shuffle(stage.free_pages)
    tenant, size = stage.admit(tokens), rng.choice([size for size in CHUNKS if size * 16 >= len(tokens)])
    beside: list[Tenant] = []
    logits = torch.empty(0)
    while tenant.computed < len(tokens):
        if beside and rng.random() < 0.3:
            stage.evict(beside.pop(rng.randrange(len(beside))))
        if len(beside) < len(others) and rng.random() < 0.7:
            beside.append(stage.admit(list(rng.choice(others))))
        members = [tenant, *(each for each in beside if each.computed < len(each.tokens))]
        rng.shuffle(members)
        left = [len(each.tokens) - each.computed for each in members]
        last = tenant.computed == len(tokens) - 1 and rng.random() < 0.5
        sizes = [size if each is tenant else rng.choice(CHUNKS) for each in members]
        counts = [1 if last else min(one, rest) for one, rest in zip(sizes, left, strict=True)]
        made = stage.step("decode" if last else "prefill", members, counts)
        logits = made[members.index(tenant)].clone()  # [V]
    for each in [tenant, *beside]:
        stage.evict(each)
    return logits
