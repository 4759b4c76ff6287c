"""Circumstances in which a probe request is computed and that must not change one bit of its output.

Knows engine options, companions and page arithmetic; knows no model's weights and compares nothing. A circumstance is
JSON: {"engine": options, "earlier": requests of a call before, "before" and "after": requests older and newer than the
probe in its own call, "form": what is asked of the engine (see the check), "cut": tokens of the output that are already
given}.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from equivalence.generators import probes
from equivalence.generators.batches import Request
from equivalence.generators.probes import Model

Circumstance = dict[str, Any]

CHUNKS = (1, 3, 5, 16, 31, 128)

MOST_STEPS = 24
"""Prefill steps of a case, but for one in thirty-two; form `lengths` has them all."""

WIDE = 1024
"""A step budget that holds every prompt in one piece."""


def draw(name: str, rng: random.Random, model: Model, probe: Request) -> Circumstance:
    """A circumstance of that kind; one kind makes the probe generate more tokens."""
    drawn: Circumstance = {"engine": {}, "earlier": [], "before": [], "after": [], "form": "whole", "cut": 0}
    KINDS[name](drawn, rng, model, probe)
    drawn["engine"].setdefault("page_size", rng.choice((12, 24, 96)))
    drawn["engine"] |= lag_and_poison(rng)
    return drawn


def lag_and_poison(rng: random.Random) -> dict[str, bool]:
    """Asynchronous scheduling on or off, and in a third of the draws NaN wherever nothing may be read."""
    return {"async_scheduling": rng.random() < 0.5, "poison_unused": rng.random() < 1 / 3}


def _chunked(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    size = _chunk(rng, probe)
    drawn["engine"] |= {
        "max_num_batched_tokens": size,
        "max_num_seqs": rng.choice([n for n in (1, 3, 16) if n <= size]),
    }


def _companions(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    most = rng.choice((3, 16))
    others = probes.draw_companions(rng, model.vocabulary, rng.choice((2, 5, 9)), 60, 8)
    place = rng.randint(0, len(others))
    drawn |= {"before": others[:place], "after": others[place:]}
    drawn["engine"] |= {"max_num_seqs": most, "max_num_batched_tokens": rng.choice((16, 31, 128, WIDE))}


def _one_by_one(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    drawn["before"] = probes.draw_companions(rng, model.vocabulary, 3, 40, 4)
    drawn["engine"] |= {"max_num_seqs": 1, "max_num_batched_tokens": _chunk(rng, *drawn["before"], probe)}


def _padded(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Decode steps of 3, 5 or 9 rows, which are padded to 4, 8 and 16."""
    tokens = probe["params"]["max_tokens"]
    others = probes.draw_companions(rng, model.vocabulary, rng.choice((2, 4, 8)), 20, 1)
    for other in others:
        other["params"]["max_tokens"] = tokens
    drawn |= {"before": others[:1], "after": others[1:]}
    drawn["engine"] |= {"max_num_seqs": 16, "max_num_batched_tokens": WIDE}


def _twins(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Its like beside it: the same prompt, prompts that it begins with or that differ in one token, other seeds."""
    prompt = probe["prompt"]
    others = probes.draw_companions(rng, model.vocabulary, 4, 1, 8)
    for other, length in zip(others, (len(prompt), len(prompt), max(1, len(prompt) // 2), len(prompt)), strict=True):
        other["prompt"] = prompt[:length]
    others[-1]["prompt"] = [*prompt[:-1], (prompt[-1] + 1) % model.vocabulary]
    rng.shuffle(others)
    drawn |= {"before": others[:2], "after": others[2:]}
    drawn["engine"] |= {"max_num_seqs": 16, "max_num_batched_tokens": rng.choice((31, WIDE))}


def _reused(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Slots and pages that earlier requests of any length have written."""
    drawn["earlier"] = probes.draw_companions(rng, model.vocabulary, 4, 100, 4)
    drawn["engine"] |= {"max_num_seqs": 3, "max_num_batched_tokens": _chunk(rng, *drawn["earlier"], probe, least=3)}


def _preempted(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Two older requests that grow until the probe must give its pages back.

    The pool holds what the three need to start and two or three spare pages; together they grow by one page more. The
    older ones still run when the probe, whose prompt takes steps, has grown as far as they.
    """
    size = math.lcm(*model.ratios)
    size *= rng.choice((1, 2)) if size < 4 else 1
    spare = rng.choice((2, 2, 3))
    rows = _chunk(rng, probe, least=16)
    elders = probes.draw_companions(rng, model.vocabulary, 2, 8, 1)
    for request in (probe, *elders):
        request["params"]["max_tokens"] = (spare - 1) * size + rng.randint(2, 6)
    for elder in elders:
        elder["params"]["max_tokens"] += -(-len(probe["prompt"]) // rows)
    young = sum(-(-(len(each["prompt"]) + 1) // size) for each in (*elders, probe))
    drawn["before"] = elders
    drawn["engine"] |= {
        "page_size": size,
        "num_pages": 1 + young + spare,
        "max_num_seqs": 4,
        "max_num_batched_tokens": rows,
    }


def _resumed(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Part of its output is given as prompt: rows of decode steps come from prefill, whole or in chunks."""
    drawn |= {"form": "resumed", "cut": rng.randrange(probe["params"]["max_tokens"])}
    drawn["engine"] |= {"max_num_seqs": 1, "max_num_batched_tokens": _chunk(rng, probe)}


def _scored(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """The whole sequence is a prompt whose logprobs are asked for: every decode row comes from prefill."""
    drawn |= {"form": "scored", "before": probes.draw_companions(rng, model.vocabulary, 2, 30, 4)}
    drawn["engine"] |= {"max_num_seqs": 3, "max_num_batched_tokens": _chunk(rng, probe, least=3)}


def _by_hand(drawn: Circumstance, rng: random.Random, model: Model, probe: Request) -> None:
    """Step plans made by hand: preempted at every step, in slots and pages of its companions, all else poisoned."""
    drawn |= {"form": "plans", "after": probes.draw_companions(rng, model.vocabulary, rng.choice((2, 3, 6)), 40, 1)}
    drawn |= {"draw": rng.getrandbits(32)}


KINDS: dict[str, Callable[[Circumstance, random.Random, Model, Request], None]] = {
    "chunked": _chunked,
    "companions": _companions,
    "preempted": _preempted,
    "plans": _by_hand,
    "resumed": _resumed,
    "reused": _reused,
    "padded": _padded,
    "one_by_one": _one_by_one,
    "twins": _twins,
    "scored": _scored,
    "plans_again": _by_hand,
}


def _chunk(rng: random.Random, *requests: Request, least: int = 1) -> int:
    """A chunk size that computes the prompts one after another in a bearable number of steps."""
    sizes = [size for size in CHUNKS if size >= least]
    bearable = [size for size in sizes if sum(-(-len(each["prompt"]) // size) for each in requests) <= MOST_STEPS]
    return rng.choice(bearable if bearable and rng.random() < 31 / 32 else sizes)
