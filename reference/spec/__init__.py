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

__all__ = [
    "CheckpointError",
    "ConfigError",
    "CounterpointError",
    "EngineError",
    "KernelUnavailableError",
    "ModelConfig",
    "RequestError",
    "RopeScaling",
    "UnsupportedError",
    "VisionConfig",
]
