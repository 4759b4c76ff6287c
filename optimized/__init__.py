"""The engine: `from optimized import LLM, SamplingParams`.

Importing this package loads neither torch nor the C++ extension: each public name is resolved when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimized.config import EngineConfig
    from optimized.llm import LLM
    from reference.spec.errors import (
        CheckpointError,
        ConfigError,
        CounterpointError,
        EngineError,
        KernelUnavailableError,
        RequestError,
        UnsupportedError,
    )
    from reference.spec.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from reference.spec.sampling import SamplingParams

__all__ = [
    "LLM",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "CounterpointError",
    "EngineConfig",
    "EngineError",
    "KernelUnavailableError",
    "Logprob",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "UnsupportedError",
]

_HOMES = {
    "LLM": "optimized.llm",
    "EngineConfig": "optimized.config",
    "SamplingParams": "reference.spec.sampling",
    **dict.fromkeys(("CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"), "reference.spec.outputs"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "reference.spec.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
