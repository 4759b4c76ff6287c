"""The operations of the model, one file each: signature, shape law and checks here, implementations by backend.

They know tensors and numbers, and no model. `table()` lists operation x backend x provider x state.
"""

from optimized.ops import (  # noqa: F401  (each names its operations for the table)
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
from optimized.ops import portable as _portable  # noqa: F401  (registers its implementations)
from optimized.ops.registry import BACKENDS, TableRow, table

__all__ = ["BACKENDS", "TableRow", "table"]
