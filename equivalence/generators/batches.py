"""Random batches of requests with every sampling option, and what engine and reference generate for them.

Knows sampling parameters, the reference and the engine's public call; compares nothing. A batch is JSON, so that a
replay holds it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from optimized import LLM
from reference.generate import Detokenizer, LanguageModel, generate
from reference.model import ReferenceModel
from reference.spec import ModelConfig, RequestOutput, SamplingParams

Request = dict[str, Any]
"""{"prompt": [token ids], "params": keywords of SamplingParams}."""

_LIKE = 48
"""Sequences whose lengths have the same quotient by this share a forward pass."""

_LENGTHS = (1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 47, 64, 65, 96, 129, 200)


def random_batch(seed: int, vocab_size: int, longest: int, most_tokens: int, largest: int = 16) -> list[Request]:
    """1 to `largest` requests of mixed lengths, half of them greedy: a function of the seed.

    longest: of a prompt; most_tokens: of a completion.
    """
    rng = random.Random(seed)
    return [
        _request(rng, vocab_size, longest, most_tokens)
        for _ in range(min(largest, rng.choice((1, 1, 2, 2, 3, 3, 5, 16))))
    ]


def _request(rng: random.Random, vocab_size: int, longest: int, most_tokens: int) -> Request:
    length = min(rng.choice(_LENGTHS) + rng.choice((0, 0, 1)), longest)
    params: dict[str, Any] = {
        "max_tokens": rng.randint(1, most_tokens),
        "ignore_eos": rng.random() < 0.5,
        "seq_seed": rng.getrandbits(64),
        "logprobs": rng.choice((0, 1, 5)),
        "temperature": 0.0,
    }
    if rng.random() < 0.5:
        params["temperature"] = rng.choice((0.3, 0.7, 1.0, 1.7))
        params["top_k"] = rng.choice((0, 0, 1, 5, 50))
        params["top_p"] = rng.choice((1.0, 1.0, 0.95, 0.5))
        params["min_p"] = rng.choice((0.0, 0.0, 0.05))
        params["n"] = rng.choice((1, 1, 1, 2, 3))
    if rng.random() < 0.2:
        params["stop_token_ids"] = rng.sample(range(vocab_size), 20)
        params["min_tokens"] = rng.randint(0, params["max_tokens"])
    if rng.random() < 0.3:
        params["prompt_logprobs"] = rng.choice((0, 2))
    if rng.random() < 0.3:
        params["presence_penalty"] = rng.choice((0.0, 0.6, -1.5))
        params["frequency_penalty"] = rng.choice((0.0, 0.4, -0.7))
        params["repetition_penalty"] = rng.choice((1.0, 1.2, 0.7))
        biased = rng.sample(range(vocab_size), 3)
        params["logit_bias"] = {str(token): rng.choice((-100.0, 1.5, 20.0)) for token in biased}
    return {"prompt": [rng.randrange(vocab_size) for _ in range(length)], "params": params}


def ask(llm: LLM, requests: Sequence[Request]) -> list[RequestOutput]:
    """What the engine generates for requests of one call."""
    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    return llm.generate(prompts, [SamplingParams(**request["params"]) for request in requests], use_tqdm=False)


class OnePass:
    """A reference that has run over whole sequences once; `generate` asks it for the rows of their prefixes.

    The last row of a forward pass over a prefix is the prefix's row of the pass over the whole, so one pass gives every
    step of a completion; sequences of like length share one, filled up at the end. Any other sequence is computed as
    it comes, so a wrong sequence only costs time.
    """

    def __init__(self, model: ReferenceModel, sequences: Iterable[Sequence[int]], replay_start: int = 0) -> None:
        self.config: ModelConfig = model.config
        self._model = model
        self._start = replay_start
        self._known: list[tuple[list[int], Tensor]] = []
        alike: dict[int, list[list[int]]] = {}
        for ids in {tuple(ids) for ids in sequences if ids}:
            alike.setdefault(len(ids) // _LIKE, []).append(list(ids))
        for group in alike.values():
            longest = max(map(len, group))
            tokens = torch.tensor([ids + [0] * (longest - len(ids)) for ids in group])  # [B, T]
            with torch.no_grad():
                self._known += zip(group, model.forward(tokens, replay_start), strict=True)  # [T, V] each

    def forward(self, tokens: Tensor, replay_start: int = 0) -> Tensor:
        """Logits [T, V] of the token ids [T]."""
        ids = tokens.tolist()
        if replay_start == self._start:
            for known, logits in self._known:
                if known[: len(ids)] == ids:
                    return logits[: len(ids)]  # [T, V]
        return self._model.forward(tokens, replay_start)  # [T, V]


def whole_sequences(request: Request, got: RequestOutput) -> list[list[int]]:
    """What the reference must run over to judge an output: the prompt with each completion but its last token."""
    return [request["prompt"] + list(completion.token_ids)[:-1] for completion in got.outputs]


def expected(
    model: LanguageModel, tokenizer: Detokenizer | None, request: Request, max_model_len: int, replay_start: int = 0
) -> RequestOutput:
    """What the reference generates for a request.

    model: the reference itself, one forward pass a token, or a OnePass over the sequences that it may turn out to be.
    """
    params = SamplingParams(**request["params"])
    with torch.no_grad():
        return generate(
            model, tokenizer, request["prompt"], params, 0, max_model_len=max_model_len, replay_start=replay_start
        )
