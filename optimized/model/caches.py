"""What lives between steps: pages of compressed KV and index keys, and the state slot of each request.

Knows the layout and the bytes of every cache; knows nothing about who owns a page or a slot. Page 0 and slot 0 are
reserved: rows that must not be kept write there, and nothing reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from optimized.ops.packed import Packed
from reference.spec.config import ModelConfig


@dataclass(frozen=True)
class CacheGeometry:
    """Sizes that follow from the configuration and the engine's options.

    num_pages: pages, page 0 included. page_size: tokens a page, a multiple of every compress ratio.
    num_slots: state slots, slot 0 included. backtrack: positions that a verification step may take back, plus one.
    """

    num_pages: int
    page_size: int
    num_slots: int
    window: int
    max_ngram: int
    backtrack: int

    @classmethod
    def of(cls, config: ModelConfig, page_size: int, num_slots: int, num_pages: int) -> CacheGeometry:
        """That of a model, whose draft says how much may be taken back."""
        backtrack = config.dspark_block_size + 1
        return cls(num_pages, page_size, num_slots, config.sliding_window, config.engram_max_ngram_size, backtrack)

    @property
    def ring(self) -> int:
        """Entries of a window ring: position p is kept at p mod ring."""
        return self.window + self.backtrack

    def open_tokens(self, ratio: int) -> int:
        """Tokens of open groups kept a slot: position p at p mod this."""
        return ratio + self.backtrack

    @property
    def history(self) -> int:
        """Engram ids kept a slot: position p at p mod this."""
        return max(1, self.max_ngram - 1) + self.backtrack


@dataclass(frozen=True)
class SourceCache:
    """Pages of one KV source, flat: the entries of page n are n * page_entries .. (n + 1) * page_entries - 1.

    kv: [pages * E, d/2] E2M1 codes, [.., d/16] E4M3 scales. keys: [pages, E, d_index/2], [.., d_index/32] UE8M0.
    open_group: [slots * open_tokens, 2, d] values and gates, unrounded; None with ratio 1.
    """

    ratio: int
    page_entries: int
    kv: Packed
    keys: Packed
    open_group: torch.Tensor | None


@dataclass(frozen=True)
class Caches:
    """All caches of one rank.

    rings: one a layer, the draft's blocks last: [slots * ring, d] E4M3 codes, [.., d/32] UE8M0 scales.
    sources: by KV source layer. engram_ids: [slots * history] int64 compressed ids.
    """

    geometry: CacheGeometry
    rings: tuple[Packed, ...]
    sources: dict[int, SourceCache]
    engram_ids: torch.Tensor

    @classmethod
    def allocate(cls, config: ModelConfig, geometry: CacheGeometry, device: torch.device) -> Caches:
        """Zeroed caches."""

        def packed(*shape: int, codes: int, scales: int) -> Packed:
            made = [_zeros((*shape, last), torch.uint8, device) for last in (codes, scales)]
            return Packed(*made)

        width, key = config.head_dim, config.index_head_dim
        entries = geometry.num_slots * geometry.ring
        layers = config.num_hidden_layers + config.num_nextn_predict_layers
        rings = tuple(packed(entries, codes=width, scales=width // 32) for _ in range(layers))
        sources = {}
        for layer in config.kv_source_layer_ids:
            ratio = config.compress_ratios[layer]
            per_page = geometry.page_size // ratio
            open_group = None
            if ratio > 1:
                tokens = geometry.num_slots * geometry.open_tokens(ratio)
                open_group = _zeros((tokens, 2, width), torch.float64, device)
            sources[layer] = SourceCache(
                ratio,
                per_page,
                packed(geometry.num_pages * per_page, codes=width // 2, scales=width // 16),
                packed(geometry.num_pages, per_page, codes=key // 2, scales=key // 32),
                open_group,
            )
        history = _zeros((geometry.num_slots * geometry.history,), torch.int64, device)
        return cls(geometry, rings, sources, history)

    def tensors(self) -> list[torch.Tensor]:
        """Everything that was allocated."""
        made = [*(tensor for ring in self.rings for tensor in ring), self.engram_ids]
        for source in self.sources.values():
            made += [*source.kv, *source.keys]
            made += [] if source.open_group is None else [source.open_group]
        return made

    def poison(self, slots: torch.Tensor, pages: torch.Tensor) -> None:
        """Fill slots and pages with codes that decode to NaN, where their format has one.

        Args:
            slots, pages: [n] int64 each.
        """
        size = self.geometry.num_slots
        for ring in self.rings:
            for tensor in ring:
                tensor.view(size, -1).index_fill_(0, slots, 0xFF)
        for source in self.sources.values():
            for tensor in (*source.kv, *source.keys):
                tensor.view(self.geometry.num_pages, -1).index_fill_(0, pages, 0xFF)
            if source.open_group is not None:
                source.open_group.view(size, -1).index_fill_(0, slots, torch.nan)
        self.engram_ids.view(size, -1).index_fill_(0, slots, 1 << 40)

    def clear_slots(self, slots: torch.Tensor) -> None:
        """Zero the state of slots that were just handed out.

        Args:
            slots: [n] int64.
        """
        size = self.geometry.num_slots
        for ring in self.rings:
            ring.codes.view(size, -1).index_fill_(0, slots, 0)
            ring.scales.view(size, -1).index_fill_(0, slots, 0)
        for source in self.sources.values():
            if source.open_group is not None:
                source.open_group.view(size, -1).index_fill_(0, slots, 0)
        self.engram_ids.view(size, -1).index_fill_(0, slots, 0)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that take no memory on the CPU until they are written (NumPy asks the system for zeroed pages)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=str(dtype).removeprefix("torch.")))


def page_bytes(config: ModelConfig, page_size: int) -> int:
    """Bytes of one page over all KV sources."""
    entry = config.head_dim // 2 + config.head_dim // 16 + config.index_head_dim // 2 + config.index_head_dim // 32
    return sum(page_size // config.compress_ratios[layer] * entry for layer in config.kv_source_layer_ids)


def slot_bytes(config: ModelConfig, geometry: CacheGeometry) -> int:
    """Bytes of one state slot."""
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    total = layers * geometry.ring * (config.head_dim + config.head_dim // 32) + 8 * geometry.history
    for layer in config.kv_source_layer_ids:
        ratio = config.compress_ratios[layer]
        total += geometry.open_tokens(ratio) * 2 * config.head_dim * 8 if ratio > 1 else 0
    return total
