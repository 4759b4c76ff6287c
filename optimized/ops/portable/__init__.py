"""Every operation in plain torch, carrying float64 between the named rounding boundaries; exact on the CPU.

Importing this package registers the implementations, for the CPU and for CUDA, where they serve until a kernel takes
an operation's place: outside the CPU none of them reads a tensor on the host or has a shape that depends on data.
"""

from optimized.ops.portable import (
    adjust_logits,
    compress_kv,
    engram,
    experts,
    grouped_linear,
    hyper_connection,
    index_scores,
    linear,
    linear_weight,
    quantize,
    rms_norm,
    rope,
    sample,
    selection,
    sparse_attention,
    store_entries,
    verification_lengths,
    verify,
)
from optimized.ops.registry import MEASURED, UNTESTED, implementations, register

__all__ = [
    "adjust_logits",
    "compress_kv",
    "engram",
    "experts",
    "grouped_linear",
    "hyper_connection",
    "index_scores",
    "linear",
    "linear_weight",
    "quantize",
    "rms_norm",
    "rope",
    "sample",
    "selection",
    "sparse_attention",
    "store_entries",
    "verification_lengths",
    "verify",
]

#: Operations that ran on an NVIDIA H200 as parts of the engine, with results that were compared with the CPU's.
_MEASURED_ON_CUDA: frozenset[str] = frozenset()


def _serve_cuda() -> None:
    """Registers what serves the CPU for CUDA too."""
    for (name, backend), found in list(implementations().items()):
        if backend == "cpu":
            register(name, backend="cuda", state=MEASURED if name in _MEASURED_ON_CUDA else UNTESTED)(found.function)


_serve_cuda()
