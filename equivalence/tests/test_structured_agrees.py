"""A structured request in the engine equals the reference's, which asks a fresh matcher before every token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import xgrammar

from equivalence.tests.test_sampling_agrees import Hashed, comparable
from optimized import SamplingParams
from optimized.engine.structured.language import Language
from optimized.engine.structured.vocabulary import token_bytes
from optimized.tests.stub import CONTEXT, VOCAB, byte_level_tokenizer, model_folder, stub_llm
from reference.generate import generate

pytestmark = pytest.mark.ci

EOS = 1
LANGUAGES: list[tuple[str, Any]] = [
    ("regex", "[a-d]+(the| and){1,3}"),
    ("ebnf", 'root ::= "x" root "y" | "the" | [0-9]'),
    ("choice", ["yes", "no", "yesterday"]),
    ("json", {"type": "array", "items": {"type": "integer"}, "minItems": 1}),
]


def grammar_of(kind: str, schema: Any) -> Callable[[Sequence[int]], torch.Tensor]:
    """The ids that may follow the output, by a matcher that starts from the beginning each time."""
    language = Language.of({"schema_type": kind, "schema": schema})
    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo(token_bytes(byte_level_tokenizer().to_str()), vocab_size=VOCAB, stop_token_ids=[EOS]),
        max_threads=1,
    )
    if language.kind == "json":
        compiled = compiler.compile_json_schema(language.text, any_whitespace=False)
    else:
        compile_it: dict[str, Any] = {"regex": compiler.compile_regex, "ebnf": compiler.compile_grammar}
        compiled = compile_it[language.kind](language.text)

    def allowed(output: Sequence[int]) -> torch.Tensor:
        matcher = xgrammar.GrammarMatcher(compiled)
        assert all(matcher.accept_token(token) for token in output)
        mask = xgrammar.allocate_token_bitmask(1, VOCAB)
        matcher.fill_next_token_bitmask(mask)
        return torch.tensor([bool(int(mask[0, i // 32]) >> i % 32 & 1) for i in range(VOCAB)])

    return allowed


def test_structured_batches_equal_the_reference_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path)
    llm, _ = stub_llm(monkeypatch, folder, logprobs_mode="processed_logprobs", num_pages=12, grammar_workers=1)
    extremes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"top_k": 3, "n": 2},
        {"top_p": 0.5, "repetition_penalty": 1.5},
        {"min_p": 0.2},
    ]
    cases = [(language, extreme) for language in LANGUAGES for extreme in extremes]
    prompts = [[3 + i, 7, 8][: 1 + i % 3] for i in range(len(cases))]
    plain = [SamplingParams(max_tokens=20, seq_seed=i, logprobs=2, **extreme) for i, (_, extreme) in enumerate(cases)]
    params = [
        dataclasses.replace(one, so_args={"schema_type": kind, "schema": schema})
        for one, ((kind, schema), _) in zip(plain, cases, strict=True)
    ]
    got = llm.generate(prompts, params, use_tqdm=False)
    model, tokenizer = Hashed(folder), byte_level_tokenizer()
    for prompt, one, (language, _), output in zip(prompts, plain, cases, got, strict=True):
        expected = generate(
            model,
            tokenizer,
            prompt,
            one,
            0,
            max_model_len=CONTEXT,
            logprobs_mode="processed_logprobs",
            grammar=grammar_of(*language),
        )
        assert comparable(output) == comparable(expected)
