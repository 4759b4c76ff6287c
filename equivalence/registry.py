"""The checks there are, by name; knows where each lives and imports one only when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from equivalence.cases import Case, Options
from equivalence.errors import UsageError
from equivalence.findings import Findings
from optimized import platforms
from reference.spec.errors import ConfigError, nearest


class CheckModule(Protocol):
    """What the module of a check offers."""

    def cases(self, options: Options) -> Iterable[Case]:
        """Every case that the options ask for, in running order. Raises SetupError when something needed is absent."""

    def run(self, case: Case, options: Options) -> Findings:
        """Run one case."""

    def shrink(self, case: Case, options: Options) -> Case:
        """A smaller case that differs alike, which the replay is of; the case itself where there is none."""


@dataclass(frozen=True)
class Check:
    """A registered check. summary: one line for `list`; module: where it lives; backends: where its engine can run."""

    name: str
    summary: str
    module: str
    backends: tuple[str, ...] = ("cpu", "cuda")

    def load(self) -> CheckModule:
        """Import the check."""
        return cast(CheckModule, importlib.import_module(self.module))


CHECKS = {
    check.name: check
    for check in (
        Check(
            "model",
            "reference against golden packs (fp32 end to end, others sub-step by sub-step); engine against reference",
            "equivalence.checks.model",
        ),
        Check(
            "batch_invariance",
            "a request gives the same bits in any batch, chunks, slots, pages, after preemption, prefilled or decoded",
            "equivalence.checks.batch_invariance",
        ),
        Check(
            "yoco",
            "bounded replay: mask and compact agree in bits and metadata, and with the reference; what it costs",
            "equivalence.checks.yoco",
        ),
        Check(
            "scheduler",
            "C++ core and reference scheduler in lock-step through simulated worlds, under the laws of a scheduler",
            "equivalence.checks.scheduler",
            ("cpu",),
        ),
        Check(
            "deterministic_sampling",
            "one text and one vector of logprobs a seed, in any batch, through preemption, with any number of drafts",
            "equivalence.checks.deterministic_sampling",
        ),
        Check(
            "structured_output",
            "constrained texts are in their language, with and without drafts; hostile grammars delay nobody",
            "equivalence.checks.structured_output",
        ),
    )
}


def find(names: Iterable[str], backend: str = "cpu") -> list[Check]:
    """The checks of those names, in order.

    Raises UsageError for an unknown one, naming the nearest; for a backend on which it cannot run, here or anywhere.
    """
    found = []
    for name in names:
        if name not in CHECKS:
            raise UsageError(f"unknown check {name!r}{nearest(name, CHECKS)} (there are: {', '.join(CHECKS)})")
        if backend not in CHECKS[name].backends:
            can = ", ".join(CHECKS[name].backends)
            raise UsageError(f"check {name!r} cannot run on backend {backend!r} (it can on: {can})")
        found.append(CHECKS[name])
    if backend != "cpu":
        try:
            platforms.resolve(backend)
        except ConfigError as error:
            told = f"torch {torch.__version__} sees no such device here"
            raise UsageError(f"backend {backend!r}: {told}; accepted: cpu") from error
    return found
