"""The operations of the model, one file each: signature, shape law and checks here, implementations by backend.

They know tensors and numbers, and no model. `table()` lists operation x backend x provider x state.
"""

from optimized.ops import portable as _portable  # noqa: F401  (registers the CPU implementations)
from optimized.ops.registry import BACKENDS, TableRow, table

__all__ = ["BACKENDS", "TableRow", "table"]
