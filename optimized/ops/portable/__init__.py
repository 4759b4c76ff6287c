"""Every operation in plain torch: exact on the CPU, where it carries float64 between the named rounding boundaries.

Importing this package registers the implementations. It knows nothing about other backends.
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
)

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
]
