"""The constants of Engram's hash: primes, offsets and multipliers. It knows ids and table rows, no weight, no layer.

Source: V4.1 model specification §6.2; DeepSeek-V4.1 inference/engram.py.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig

MAX_INT64 = 2**63 - 1
SEED_PER_LAYER = 10007
# Deterministic Miller-Rabin bases for every number below 3.3e24.
WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(number: int) -> bool:
    """Whether number is prime; exact for every int below 2**64."""
    if number < 2:
        return False
    for prime in WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in WITNESSES:
        power = pow(witness, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def table_primes(layers: int, max_ngram: int, heads: int, vocab_size: int) -> list[list[list[int]]]:
    """Table sizes [layer][n-gram size - 2][head]: for each, the primes from vocab_size up, none used twice.

    Every (layer, n-gram size) walk starts again at vocab_size - 1 and takes the next primes that no earlier one took.
    """
    used: set[int] = set()
    primes: list[list[list[int]]] = []
    for _ in range(layers):
        primes.append([])
        for _ in range(2, max_ngram + 1):
            number, row = vocab_size - 1, list[int]()
            while len(row) < heads:
                number += 1
                if number not in used and is_prime(number):
                    used.add(number)
                    row.append(number)
            primes[-1].append(row)
    return primes


def hash_multipliers(layer: int, max_ngram: int, compressed_vocab_size: int) -> np.ndarray:
    """Odd multipliers int64 [max_ngram], by look-back distance. No product with a compressed id overflows int64."""
    bound = max(1, MAX_INT64 // compressed_vocab_size // 2)
    drawn = np.random.default_rng(SEED_PER_LAYER * layer).integers(0, bound, size=max_ngram, dtype=np.int64)
    return drawn * 2 + 1


@dataclasses.dataclass(frozen=True)
class EngramLayerLayout:
    """One Engram layer's table.

    primes: [n-gram size - 2][head], rows of each hash column's own part of the table.
    offsets: [n-gram size - 2][head], first row of that part.
    multipliers: int64 [max_ngram], by look-back distance 0..max_ngram-1.
    num_embeddings: rows of the whole table.
    """

    layer: int
    primes: tuple[tuple[int, ...], ...]
    offsets: tuple[tuple[int, ...], ...]
    multipliers: np.ndarray
    num_embeddings: int

    @property
    def flat_primes(self) -> np.ndarray:
        """int64 [columns], in the order of the concatenated rows: 2-gram heads, 3-gram heads, ..."""
        return np.array(self.primes, dtype=np.int64).reshape(-1)

    @property
    def flat_offsets(self) -> np.ndarray:
        """int64 [columns], in the same order."""
        return np.array(self.offsets, dtype=np.int64).reshape(-1)


@dataclasses.dataclass(frozen=True)
class EngramLayout:
    """The tables of all Engram layers, in the order of engram_layer_ids."""

    layers: tuple[EngramLayerLayout, ...]

    @classmethod
    def of(cls, config: "ModelConfig") -> "EngramLayout":
        """The layout that a configuration asks for; empty without Engram layers."""
        if not config.engram_layer_ids:
            return cls(())
        ngram, heads = config.engram_max_ngram_size, config.engram_n_heads
        primes = table_primes(len(config.engram_layer_ids), ngram, heads, config.engram_vocab_size)
        layers = zip(config.engram_layer_ids, primes, strict=True)
        return cls(tuple(_layer_layout(config, layer, sizes) for layer, sizes in layers))

    def of_layer(self, layer: int) -> EngramLayerLayout:
        """The layout of one global layer id.

        Raises:
            KeyError: that layer has no Engram.
        """
        for layout in self.layers:
            if layout.layer == layer:
                return layout
        raise KeyError(f"layer {layer} has no Engram; layers {[layout.layer for layout in self.layers]} do")


def _layer_layout(config: "ModelConfig", layer: int, primes: list[list[int]]) -> EngramLayerLayout:
    row, offsets = 0, list[tuple[int, ...]]()
    for sizes in primes:
        starts = []
        for size in sizes:
            starts.append(row)
            row += size
        offsets.append(tuple(starts))
    multipliers = hash_multipliers(layer, config.engram_max_ngram_size, config.engram_compressed_vocab_size)
    multipliers.setflags(write=False)
    return EngramLayerLayout(layer, tuple(tuple(sizes) for sizes in primes), tuple(offsets), multipliers, row)
