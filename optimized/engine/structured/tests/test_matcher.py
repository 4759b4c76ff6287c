"""A matcher stands where a fresh one fed the same tokens stands, ends by the rules, and cannot take unbounded time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xgrammar

from optimized.engine.structured.language import Language
from optimized.engine.structured.matcher import GrammarError, Matcher
from optimized.ops.adjust_logits import unpack_bits

pytestmark = pytest.mark.ci

VOCAB = 270
EOS = 256


def matcher(kind: str, schema: object, stop_ids: tuple[int, ...] = (EOS,)) -> Matcher:
    language = Language.of({"schema_type": kind, "schema": schema})
    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo([bytes([byte]) for byte in range(256)], vocab_size=VOCAB, stop_token_ids=[EOS]),
        max_threads=1,
    )
    compile_it: dict[str, Any] = {
        "json": compiler.compile_json_schema,
        "regex": compiler.compile_regex,
        "ebnf": compiler.compile_grammar,
    }
    return Matcher(compile_it[language.kind](language.text), stop_ids, VOCAB)


def allowed(one: Matcher) -> list[int]:
    return unpack_bits(one.words[None], VOCAB)[0].nonzero().flatten().tolist()


def feed(one: Matcher, text: str) -> Matcher:
    for byte in text.encode():
        one.commit(byte)
    return one


@pytest.mark.parametrize("kind, schema", [("json", None), ("regex", "[a-c]{2,9}(x|yz)*"), ("choice", ["é\n", 'é"\\'])])
def test_its_state_is_that_of_a_fresh_one_after_every_token(
    kind: str, schema: object, rng: np.random.Generator
) -> None:
    one, taken = matcher(kind, schema), []
    for _ in range(30):
        choices = [token for token in allowed(one) if token != EOS]
        if not choices:
            break
        taken.append(int(rng.choice(choices)))
        one.commit(taken[-1])
        fresh = matcher(kind, schema)
        fresh.restart(taken)
        assert torch.equal(fresh.words, one.words)
        assert fresh.complete == one.complete
    assert taken


GRAMMARS = [
    ("json", None),
    ("json", {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"]}),
    ("regex", "[a-c]{2,9}(x|yz)*"),
    ("regex", "a[ab]?"),
    ("ebnf", 'root ::= "b" root? "b" | "x"'),
    ("choice", ["é\n", 'é"\\', "b"]),
]


@pytest.mark.parametrize("stop_ids", [(EOS,), (), (EOS, ord("b"))])
@pytest.mark.parametrize("kind, schema", GRAMMARS)
def test_masks_of_a_block_are_those_after_its_drafts_and_leave_no_trace(
    kind: str, schema: object, stop_ids: tuple[int, ...], rng: np.random.Generator
) -> None:
    """Drafts are allowed tokens, stop ids among them, with some that are not allowed in between."""
    one, committed = matcher(kind, schema, stop_ids), list[int]()
    while len(committed) < 20 and allowed(one):
        masks, drafts, fresh = [one.words.clone()], list[int](), matcher(kind, schema, stop_ids)
        fresh.restart(committed)
        for _ in range(rng.integers(0, 5)):
            choices = allowed(fresh)
            if rng.random() < 0.1 or not choices:
                drafts.append(int(rng.integers(0, VOCAB)))
            else:
                drafts.append(int(rng.choice(choices)))
            if drafts[-1] not in choices or (fresh.complete and drafts[-1] in stop_ids):
                break
            fresh.commit(drafts[-1])
            masks.append(fresh.words.clone())
        later = rng.integers(0, VOCAB, rng.integers(0, 3)).tolist() if len(masks) <= len(drafts) else []
        free = [torch.full_like(one.words, -1)] * (1 + len(drafts) + len(later) - len(masks))
        assert torch.equal(one.words_through([*drafts, *later]), torch.stack([*masks, *free]))
        assert torch.equal(one.words, masks[0])
        token = int(rng.choice(allowed(one)))
        ended = one.complete and token in stop_ids
        one.commit(token)
        committed.append(token)
        if ended:
            assert one.exhausted
            break
        again = matcher(kind, schema, stop_ids)
        again.restart(committed)
        assert torch.equal(again.words, one.words) and again.complete == one.complete
    assert committed


def test_a_stop_id_is_allowed_where_the_text_is_complete_and_only_there() -> None:
    stop = (EOS, ord("b"))
    one = matcher("regex", "a[ab]?", stop)
    assert allowed(one) == [ord("a")]
    feed(one, "a")
    assert allowed(one) == [ord("a"), ord("b"), EOS]
    one.commit(ord("b"))
    assert allowed(one) == []
    assert matcher("regex", "ba", stop).exhausted


def test_without_stop_ids_it_is_exhausted_where_nothing_can_follow() -> None:
    one = feed(matcher("regex", "ab", ()), "ab")
    assert one.exhausted
    assert one.complete
    longer = feed(matcher("regex", "a*", ()), "a")
    assert not longer.exhausted
    assert allowed(longer) == [ord("a")]


def test_a_token_that_its_mask_forbids_is_an_error() -> None:
    with pytest.raises(GrammarError, match="refuses token 98"):
        matcher("regex", "a").commit(ord("b"))


def test_ids_past_the_tokenizer_are_never_allowed() -> None:
    assert max(allowed(matcher("regex", ".*"))) <= EOS


def test_a_grammar_that_takes_more_time_with_every_token_is_given_up() -> None:
    slow = matcher("ebnf", 'root ::= (a | a a)* "b"\na ::= b* b*\nb ::= "x" | "x" b | b "x"')
    slow._seconds = 0.1
    with pytest.raises(GrammarError, match="too much time"):
        feed(slow, "x" * 2000)


def test_drafts_that_take_too_much_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = matcher("regex", "a*")
    monkeypatch.setattr("optimized.engine.structured.matcher.SECONDS_A_TOKEN", 0.0)
    slow._seconds = 0.0
    with pytest.raises(GrammarError, match="too much time"):
        slow.words_through(list(b"aaa"))


def test_bits_are_unpacked_word_by_word(rng: np.random.Generator) -> None:
    expected = torch.from_numpy(rng.integers(0, 2, size=(3, 70)).astype(bool))
    words = torch.zeros(3, 3, dtype=torch.int64)
    for row, bit in expected.nonzero().tolist():
        words[row, bit // 32] += 1 << (bit % 32)
    assert torch.equal(unpack_bits(words.to(torch.int32), 70), expected)
