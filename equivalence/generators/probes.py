"""Probe requests and their companions: lengths across window and top-k limits, odd and even, greedy and sampled.

Knows configurations and sampling parameters; knows no engine and no circumstance in which a probe is put. Everything is
JSON, so that a replay holds it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equivalence.cases import derived_seed
from equivalence.generators.batches import Request
from equivalence.generators.configs import random_config
from equivalence.generators.released import released_ratios
from reference import tiny
from reference.spec import ModelConfig

LONGEST = 300


class Model:
    """A model that cases are drawn for.

    params: "config" and "weights" of a random checkpoint, empty for the bundled one. limits: prompt lengths at which
    something begins to be cut: the window, and index_topk entries of each ratio. ratios: of its KV sources.
    least_keep: the smallest number of rows that bounded replay accepts. receptive_field: rows before the cut that the
    last row of a prompt depends on: each decoder layer reaches window - 1 rows back.
    """

    def __init__(self, name: str, config: ModelConfig, seed: int | None) -> None:
        self.name = name
        self.params: dict[str, Any] = {} if seed is None else {"config": config.to_dict(), "weights": seed % 2**31}
        self.vocabulary = config.vocab_size
        self.ratios = tuple(config.compress_ratios[layer] for layer in config.kv_source_layer_ids)
        self.limits = (config.sliding_window, *sorted({config.index_topk * ratio for ratio in self.ratios}))
        self.least_keep = config.sliding_window + (config.dspark_block_size if config.has_draft else 0) + 1
        depth = config.num_hidden_layers - config.decoder_start
        self.receptive_field = depth * (config.sliding_window - 1) + 1


def draw_model(seed: int, number: int) -> Model:
    """Model `number` of a seed: every 24th the bundled one, every 192nd with the released ratios, else random."""
    drawn = derived_seed("model", seed, number)
    if number % 24 == 3:
        return Model("tiny", ModelConfig.from_file(Path(tiny.__file__).parent / "config.json"), None)
    if number % 192 == 6:
        return Model("released", released_ratios(), drawn)
    return Model("random", next(layered_configs(drawn)), drawn)


def draw_swept_model(seed: int, number: int) -> Model:
    """Model `number` of those that see every length: the third of 27 has the released ratios, the others are random.

    Of the random ones, every other one has sources of ratio 2 and of ratio 1.
    """
    drawn = derived_seed("swept", seed, number)
    if number % 27 == 2:
        return Model("released", released_ratios(), drawn)
    models = (Model("random", config, drawn) for config in layered_configs(drawn))
    return next(model for model in models if number % 2 or {1, 2} <= set(model.ratios))


def layered_configs(seed: int) -> Iterator[ModelConfig]:
    """Random configurations with layers after the last KV source, so that a window reaches beyond itself."""
    number = 0
    while True:
        config = random_config(derived_seed("layers", seed, number))
        if config.num_hidden_layers - config.decoder_start > 1:
            yield config
        number += 1


def prompt_length(rng: random.Random, limits: tuple[int, ...]) -> int:
    """1 to LONGEST tokens, a third of the draws next to a limit, a third short."""
    kind = rng.randrange(3)
    if kind == 0:
        return max(1, min(LONGEST, rng.choice(limits) + rng.randint(-2, 2)))
    return rng.randint(1, 48 if kind == 1 else LONGEST)


def draw_request(rng: random.Random, vocabulary: int, length: int, tokens: int) -> Request:
    """One request with logprobs, half of them sampled. tokens: what it generates, whatever the ids."""
    params: dict[str, Any] = {
        "max_tokens": tokens,
        "ignore_eos": True,
        "seq_seed": rng.getrandbits(64),
        "logprobs": 5,
        "temperature": 0.0,
    }
    if rng.random() < 0.5:
        params["temperature"] = rng.choice((0.7, 1.0, 1.7))
        params["top_k"] = rng.choice((0, 0, 5, 50))
        params["top_p"] = rng.choice((1.0, 0.95, 0.5))
    return {"prompt": [rng.randrange(vocabulary) for _ in range(length)], "params": params}


def draw_companions(rng: random.Random, vocabulary: int, count: int, longest: int, tokens: int) -> list[Request]:
    """Requests of random lengths up to `longest`, each generating 1 to `tokens` tokens."""
    return [draw_request(rng, vocabulary, rng.randint(1, longest), rng.randint(1, tokens)) for _ in range(count)]
