"""The vocabulary that both voices share: configuration, tensor plan, sampling parameters, outputs, errors.

Nothing here computes a layer and nothing here imports torch.
"""

from reference.spec.config import ModelConfig, RopeScaling, VisionConfig
from reference.spec.errors import (
    CheckpointError,
    ConfigError,
    CounterpointError,
    EngineError,
    KernelUnavailableError,
    RequestError,
    UnsupportedError,
)
from reference.spec.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from reference.spec.sampling import SamplingParams

__all__ = [
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "CounterpointError",
    "EngineError",
    "FinishReason",
    "KernelUnavailableError",
    "Logprob",
    "ModelConfig",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "RopeScaling",
    "SamplingParams",
    "UnsupportedError",
    "VisionConfig",
]
