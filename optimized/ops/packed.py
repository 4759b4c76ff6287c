"""Quantised vectors as two byte tensors. Knows no format: each operation says which one it reads."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Packed(NamedTuple):
    """Quantised vectors: codes (uint8, two E2M1 codes or one E4M3 code a byte) and their scale codes (uint8)."""

    codes: torch.Tensor
    scales: torch.Tensor
