"""The one tolerance table: what may differ, by how much, and why; computes nothing.

Bitwise is the default; a row here is an exception that someone can argue with. Every comparison names its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """How a difference is measured."""

    BITS = "bits"
    """Equal values: no element may differ (NaN equals NaN in the same place; +0 equals -0)."""

    ABSOLUTE = "absolute"
    """The largest |got - want|."""

    RELATIVE = "relative"
    """The largest |got - want| / |want|; zero must be zero."""

    RELATIVE_RMS = "relative rms"
    """rms(got - want) / rms(want) over all tensors of a sub-step of a case together."""

    BF16_STEPS = "bf16 steps"
    """The largest distance, counted in representable bfloat16 numbers."""

    RMS = "times rms"
    """The largest |got - want| divided by the rms of the whole wanted tensor."""


@dataclass(frozen=True)
class Tolerance:
    """One row.

    value: in the unit of the measure; share: the least share of all elements of a sub-step, pooled over a pack, that
    must lie inside `value`. 1 means each of them.
    """

    name: str
    measure: Measure
    value: float
    reason: str
    share: float = 1.0


def _rows(*rows: Tolerance) -> dict[str, Tolerance]:
    return {row.name: row for row in rows}


TABLE = _rows(
    Tolerance("exact", Measure.BITS, 0.0, "the default: ids, selections, masks, hashes, both voices on CPU"),
    Tolerance(
        "model.fp32_noq.logits",
        Measure.ABSOLUTE,
        1e-4,
        "float32 sums of the packs against float64 here; an independent float32 program lies 7e-6 away",
    ),
    Tolerance(
        "model.fp32_noq.values", Measure.RMS, 1e-4, "the same for streams, final rows and weights, to their size"
    ),
    Tolerance("model.known_answers", Measure.RELATIVE, 1e-9, "float64 against numbers worked out by hand"),
    Tolerance(
        "model.official.values",
        Measure.BF16_STEPS,
        1,
        "bf16 results of float32 sums in another order: a sum near the middle of two bf16 numbers goes either way",
        share=0.999,
    ),
    Tolerance(
        "model.official.outlier",
        Measure.RMS,
        0.25,
        "the remaining 0.1 %: where an input of a quantised linear flips, one FP8 step of it reaches a whole row",
    ),
    Tolerance(
        "model.official.core",
        Measure.RELATIVE_RMS,
        5e-3,
        "the kernel rounds softmax weights against a running maximum, here against an integer power of two; "
        "an exact softmax lies as far from either",
    ),
    Tolerance(
        "model.official.layer",
        Measure.BF16_STEPS,
        1,
        "a decode row of a whole layer is one sub-step, and few rows are recorded: one that follows an input over a "
        "boundary is a sixteenth of them",
        share=0.8,
    ),
    Tolerance(
        "model.official.draft",
        Measure.RELATIVE_RMS,
        2e-2,
        "three whole draft blocks, attention in the released order: a few bf16 and FP8 flips are left",
    ),
    Tolerance(
        "model.official.raw",
        Measure.BF16_STEPS,
        1,
        "before close calls are taken out: whole rows may follow one input over a boundary, most rows may not",
        share=0.9,
    ),
    Tolerance(
        "model.quantised",
        Measure.BITS,
        0.0,
        "a quantised value follows its input over a rounding boundary; each one that differs must also be explained by "
        "an input one step away, so the share only bounds how many may",
        share=0.95,
    ),
    Tolerance(
        "model.mix",
        Measure.ABSOLUTE,
        2e-6,
        "float32 mixes of recorded streams, nothing rounded between; values are at most 2",
    ),
    Tolerance("model.logits_from_hidden", Measure.RMS, 1e-5, "one float32 matrix product of recorded rows"),
    Tolerance(
        "model.fp32.values",
        Measure.RMS,
        3e-5,
        "float32 sums against float64; the share is for rows in which an FP8 or FP4 input goes over a boundary",
        share=0.99,
    ),
    Tolerance(
        "model.fp32.outlier", Measure.RMS, 0.25, "the remaining 1 %: one FP8 step of an input reaches a whole row"
    ),
    Tolerance("model.fp32.layer", Measure.RMS, 3e-5, "as model.official.layer", share=0.8),
    Tolerance("model.fp32.raw", Measure.RMS, 3e-5, "as model.official.raw", share=0.9),
    Tolerance("model.fp32.draft", Measure.RELATIVE_RMS, 1e-2, "three whole draft blocks with quantised inputs"),
    Tolerance(
        "model.fp32.margin",
        Measure.ABSOLUTE,
        1e-5,
        "two float32 scores this close are ranked by the order of a sum (values are at most 2)",
    ),
    Tolerance(
        "cuda.logprobs",
        Measure.ABSOLUTE,
        1e-12,
        "equal logits through the log-softmax of two devices, which cancels for a token that is almost certain: "
        "-2.0066999e-9 against -2.0067015e-9 was seen",
    ),
)


def of_backend(backend: str) -> str:
    """The row for logprobs of the engine on a backend against those of the CPU, where both voices agree in bits."""
    return "exact" if backend == "cpu" else f"{backend}.logprobs"


def tolerance(name: str) -> Tolerance:
    """The row of that name. Raises KeyError: a comparison without a row is a mistake in the check."""
    return TABLE[name]
