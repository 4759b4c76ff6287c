"""Both sides of a checkpoint, bundled or random: the folder that the engine loads, and the reference's model of it.

Knows how to build them and when their files may go; knows no check.
"""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from reference import tiny
from reference.checkpoint import load_checkpoint
from reference.model import ReferenceModel
from reference.spec import ModelConfig
from reference.tiny.build import random_checkpoint


@dataclass(frozen=True, eq=False)
class Voices:
    """folder: where the checkpoint lies; model, tokenizer: the reference's."""

    folder: Path
    model: ReferenceModel
    tokenizer: Tokenizer


def of_case(params: Mapping[str, Any]) -> Voices:
    """What a case's parameters name: random weights by "config" and "weights", or the bundled checkpoint without."""
    return random_weights(params["config"], params["weights"]) if "config" in params else bundled()


@functools.cache
def bundled() -> Voices:
    """The bundled checkpoint."""
    return _load(Path(tiny.__file__).parent)


def random_weights(config: dict[str, Any], seed: int) -> Voices:
    """Random weights of a configuration in the released layout; the files go when nothing uses them any more."""
    return _random(json.dumps(config, sort_keys=True), seed)


@functools.lru_cache(maxsize=2)
def _random(config: str, seed: int) -> Voices:
    folder = Path(tempfile.mkdtemp(prefix="equivalence-"))
    random_checkpoint(ModelConfig.from_dict(json.loads(config)), seed, folder)
    voices = _load(folder)
    weakref.finalize(voices, shutil.rmtree, folder, ignore_errors=True)
    return voices


def _load(folder: Path) -> Voices:
    checkpoint = load_checkpoint(folder)
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map)
    return Voices(folder, model, Tokenizer.from_file(str(folder / "tokenizer.json")))
