"""Small random models with a draft, and sampling parameters under which some of its drafts are kept and some are not.

An untrained draft agrees with its model by chance alone. What raises the chance without touching either: a bias on few
tokens, which both see, and a high temperature, under which shared noise decides. Knows configurations and sampling
parameters; knows no engine.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from typing import Any

from equivalence.cases import derived_seed
from equivalence.generators.configs import random_config
from equivalence.generators.probes import Model
from reference.spec import ModelConfig
from reference.tiny.tokenizer import random_tokenizer

tokenizer_of = functools.cache(random_tokenizer)
"""(vocabulary) -> the tokenizer of random checkpoints of so many ids."""

BLOCK = 5
"""Drafts of a block: the released model's."""

MOST_LAYERS = 3

EOS = 1

_INCOMPLETE = "\ufffd"
"""What bytes that are no character are shown as."""


def draw_model(seed: int, number: int) -> Model:
    """Model `number` of a seed: at most MOST_LAYERS layers, then one or two blocks of the draft."""
    drawn = derived_seed("drafted model", seed, number)
    attempt = 0
    while (config := random_config(derived_seed(drawn, attempt))).num_hidden_layers > MOST_LAYERS:
        attempt += 1
    return Model("drafted", with_draft(config, random.Random(drawn)), drawn)


def with_draft(config: ModelConfig, rng: random.Random) -> ModelConfig:
    """The same configuration with a draft."""
    blocks = rng.choice((1, 2))
    layers = config.num_hidden_layers
    targets = sorted(rng.sample(range(layers), min(layers, rng.choice((1, 2)))))
    return dataclasses.replace(
        config,
        compress_ratios=(*config.compress_ratios[:layers], *[0] * blocks),
        num_nextn_predict_layers=blocks,
        dspark_block_size=BLOCK,
        dspark_noise_token_id=3,
        dspark_target_layer_ids=tuple(targets),
        dspark_markov_rank=16,
        dspark_n_routed_experts=4,
        dspark_num_experts_per_tok=2,
    )


def draw_sampling(rng: random.Random, vocabulary: int, tokens: int) -> dict[str, Any]:
    """Keywords of SamplingParams: a quarter greedy, and every option that changes what a token is drawn from."""
    few = rng.sample(_letters(vocabulary) if rng.random() < 0.5 else range(vocabulary), rng.choice((2, 3, 5)))
    params: dict[str, Any] = {
        "max_tokens": tokens,
        "seq_seed": rng.getrandbits(64),
        "logprobs": rng.choice((0, 1, 3)),
        "temperature": rng.choice((0.0, 0.7, 1.0, 3.0)),
        "logit_bias": {str(token): rng.choice((12.0, 13.0, 14.5)) for token in few},
    }
    if rng.random() < 0.4:
        params["top_k"] = rng.choice((1, 2, 5, 50))
        params["top_p"] = rng.choice((1.0, 0.9, 0.5))
        params["min_p"] = rng.choice((0.0, 0.1))
    if rng.random() < 0.4:
        params["presence_penalty"] = rng.choice((0.0, 0.6, -1.5))
        params["frequency_penalty"] = rng.choice((0.0, 0.7, -0.4))
        params["repetition_penalty"] = rng.choice((1.0, 1.2, 0.7))
    if rng.random() < 0.15:
        del params["logit_bias"]
    return params | _endings(rng, vocabulary, few, tokens)


def _endings(rng: random.Random, vocabulary: int, likely: list[int], tokens: int) -> dict[str, Any]:
    """What ends a completion before its length: ids and strings of ids that are often drawn, after some tokens."""
    ends: dict[str, Any] = {"ignore_eos": rng.random() < 0.5}
    kind = rng.random()
    if kind < 0.25:
        ends["stop_token_ids"] = rng.sample(likely, 1)
    elif kind < 0.5:
        text = tokenizer_of(vocabulary).decode([rng.choice(likely) for _ in range(rng.choice((1, 2, 3)))])
        ends["stop"] = [text.replace(_INCOMPLETE, "") or "e"]
    if kind < 0.5:
        ends["min_tokens"] = rng.randint(0, tokens // 2)
    return ends


def _letters(vocabulary: int) -> list[int]:
    """Ids of single letters."""
    tokenizer = tokenizer_of(vocabulary)
    return [tokenizer.encode(letter, add_special_tokens=False).ids[0] for letter in "etaoinsh"]
