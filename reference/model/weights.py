"""Named weight values with a prefix: `layer["attn.wq_a"]` reads `layers.3.attn.wq_a.weight`. Knows no shapes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class Weights:
    """A view of a checkpoint's dequantised tensors below one prefix."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str = "") -> None:
        self._tensors = tensors
        self._prefix = prefix

    def at(self, name: str) -> Weights:
        """The weights below ``name``, such as ``layers.0`` or ``attn``."""
        return Weights(self._tensors, f"{self._prefix}{name}.")

    def __getitem__(self, name: str) -> Tensor:
        full = self._prefix + name
        return self._tensors[full] if full in self._tensors else self._tensors[f"{full}.weight"]

    def mixing(self, sublayer: str) -> tuple[Tensor, Tensor, Tensor]:
        """fn, scale and base of the hyper-connections around ``attn`` or ``ffn``."""
        return self[f"hc_{sublayer}_fn"], self[f"hc_{sublayer}_scale"], self[f"hc_{sublayer}_base"]
