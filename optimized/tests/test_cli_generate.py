"""`counterpoint generate`: one record for every line, in order, whatever the lines hold and wherever a run is cut."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from optimized import LLM, SamplingParams
from optimized.cli import main
from optimized.tests.stub import StubWorker, model_folder, stub_llm

pytestmark = pytest.mark.ci

GOOD: list[dict[str, Any]] = [
    {"prompt": "the hand", "custom_id": "a"},
    {"prompt_token_ids": [5, 6, 7], "custom_id": 7, "max_tokens": 20, "temperature": 0},
    {"prompt": "and €", "n": 2, "logprobs": 1},
    {"prompt": "x" * 60, "stop": ["a", "the"], "max_tokens": None, "seq_seed": 12},
]
BAD: list[tuple[bytes, str, str]] = [
    (b"", "not_json", "not JSON"),
    (b"{", "not_json", "not JSON"),
    (b'{"prompt": "a"} {"prompt": "b"}', "not_json", "Extra data"),
    (b'{"prompt": "a", "prompt": "b"}', "not_json", "key 'prompt' appears twice"),
    (b'{"prompt": "a", "temperature": NaN}', "not_json", "NaN is not JSON"),
    (b'{"prompt": "a", "temperature": Infinity}', "not_json", "Infinity is not JSON"),
    (b'{"prompt": "a", "seq_seed": ' + b"9" * 5000 + b"}", "not_json", "not JSON"),
    (b'{"prompt": ' + b"[" * 9000, "not_json", "not JSON"),
    (b'{"prompt": "a', "not_json", "not JSON"),
    (b"[1, 2]", "not_object", "a JSON list; accepted: an object"),
    (b"null", "not_object", "accepted: an object"),
    (b'"prompt"', "not_object", "a JSON str; accepted: an object"),
    (b'{"prompt": "\xff"}', "not_utf8", "byte 12 is no UTF-8"),
    (b'{"prompt": "\xed\xa0\x80"}', "not_utf8", "no UTF-8"),
    (b'{"prompt": "' + b"x" * 30000 + b'"}', "too_long", "longer than 20000 bytes"),
    (b"\x00" * 30000, "too_long", "longer than 20000 bytes"),
    (b'{"prompt": "a", "max_token": 5}', "unknown_key", "'max_token'; nearest is 'max_tokens'"),
    (b"{}", "bad_value", "got no prompt"),
    (b'{"prompt": "a", "prompt_token_ids": [5]}', "bad_value", "got prompt and prompt_token_ids"),
    (b'{"prompt": 5}', "bad_value", "prompt: got 5; accepted: text"),
    (b'{"prompt": "a", "max_tokens": 0}', "bad_value", "max_tokens"),
    (b'{"prompt": "a", "temperature": 1e999}', "bad_value", "temperature"),
    (b'{"prompt": "a", "top_p": "1"}', "bad_value", "top_p"),
    (b'{"prompt": "a", "n": true}', "bad_value", "n"),
    (b'{"prompt": "a", "custom_id": 1.5}', "bad_value", "custom_id: got 1.5"),
    (b'{"prompt": "a", "custom_id": "\\ud800"}', "bad_value", "custom_id: got"),
    (b'{"prompt": "a", "custom_id": [1]}', "bad_value", "custom_id: got [1]"),
    (b'{"prompt": "a", "so_args": {"schema_type": "json", "schema": {"not": {}}}}', "request", "keyword 'not'"),
    (b'{"prompt": "a", "so_args": {"schema_type": "xml", "schema": ""}}', "bad_value", "so_args"),
    (b'{"prompt": "a", "presence_penalty": 3}', "bad_value", "presence_penalty"),
    (b'{"prompt": "a", "logit_bias": {"300": 1}}', "request", "logit_bias: got 300"),
    (b'{"prompt": ""}', "request", "accepted: a string of at least one character"),
    (b'{"prompt": "\\ud800"}', "request", "accepted: text without lone surrogates"),
    (b'{"prompt_token_ids": [5, -1]}', "request", "prompt_token_ids[1]: got -1"),
    (b'{"prompt_token_ids": [true]}', "request", "prompt_token_ids[0]: got True"),
    (b'{"prompt_token_ids": "5"}', "request", "prompt: got '5'; accepted"),
]
LIMITS = ["--max-line-bytes", "20000", "--max-num-seqs", "3", "--max-num-batched-tokens", "24", "--page-size", "8"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder whose subfolder `model` is served by a stub."""
    (tmp_path / "model").mkdir()
    stub_llm(monkeypatch, model_folder(tmp_path / "model"))
    return tmp_path


def generate(folder: Path, lines: bytes, *options: str, output: str = "out.jsonl") -> int:
    (folder / "in.jsonl").write_bytes(lines)
    files = ["--model", str(folder / "model"), "--input", str(folder / "in.jsonl"), "--output", str(folder / output)]
    return main(["generate", *files, "--seed", "1", *LIMITS, *options])


def records(folder: Path, output: str = "out.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / output).read_bytes().splitlines()]


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_every_bad_line_gives_one_record_in_its_place_and_touches_no_other(folder: Path) -> None:
    assert generate(folder, jsonl(*GOOD), output="good.jsonl") == 0
    good = records(folder, "good.jsonl")
    bad = [line for line, _, _ in BAD]
    lines = [line for pair in zip(bad, jsonl(*GOOD).splitlines(), strict=False) for line in pair] + bad[len(GOOD) :]
    assert generate(folder, b"\n".join(lines) + b"\n") == 1
    found = records(folder)
    assert [record["index"] for record in found] == list(range(len(lines)))
    last = 2 * len(GOOD)
    assert [{**record, "index": i} for i, record in enumerate(found[1:last:2])] == good
    found = found[0:last:2] + found[last:]
    for record, (_, kind, message) in zip(found, BAD, strict=True):
        assert (record["error"]["kind"], record["outputs"]) == (kind, [])
        assert message in record["error"]["message"]


def test_records_hold_what_generate_returns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate(folder, jsonl(*GOOD), "--temperature", "0.5", "--seq-seed", "3") == 0
    llm, _ = stub_llm(monkeypatch, folder / "model")
    for record, line in zip(records(folder), GOOD, strict=True):
        given = {key: value for key, value in line.items() if key not in ("prompt", "prompt_token_ids", "custom_id")}
        prompt = line.get("prompt", line.get("prompt_token_ids"))
        params = SamplingParams(**{"temperature": 0.5, "seq_seed": 3, **given})
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        assert record["custom_id"] == line.get("custom_id")
        assert record["seq_seed"] == params.seq_seed
        for sample, completion in zip(record["outputs"], output.outputs, strict=True):
            assert sample["text"] == completion.text
            assert sample["token_ids"] == completion.token_ids
            assert (sample["finish_reason"], sample["stop_reason"]) == (
                completion.finish_reason,
                completion.stop_reason,
            )
            assert sample["cumulative_logprob"] == completion.cumulative_logprob
            if completion.logprobs is not None:
                steps = [
                    {int(t): (one["logprob"], one["rank"]) for t, one in step.items()} for step in sample["logprobs"]
                ]
                assert steps == [
                    {t: (one.logprob, one.rank) for t, one in step.items()} for step in completion.logprobs
                ]


@pytest.mark.parametrize(
    "lines", [b"", b"\n", jsonl(GOOD[1])[:-1], b"\xef\xbb\xbf" + jsonl(GOOD[1]), jsonl(GOOD[1]).replace(b"\n", b"\r\n")]
)
def test_ends_of_lines_and_files(folder: Path, lines: bytes) -> None:
    code = generate(folder, lines)
    found = records(folder)
    assert len(found) == bool(lines)
    assert code == int(lines == b"\n")


def whole_run(folder: Path) -> bytes:
    refused = b'{"prompt_token_ids": [-1]}\n'
    lines = jsonl(*GOOD, *GOOD[:3]) + BAD[1][0] + b"\n" + refused + jsonl(GOOD[3], *GOOD * 3)
    assert generate(folder, lines, output="whole.jsonl") == 1
    return lines


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.77, 1.0])
def test_a_run_cut_off_at_any_byte_is_resumed_to_the_same_file(folder: Path, share: float) -> None:
    lines = whole_run(folder)
    whole = (folder / "whole.jsonl").read_bytes()
    for cut in {int(len(whole) * share), max(int(len(whole) * share) - 1, 0)}:
        (folder / "out.jsonl").write_bytes(whole[:cut])
        assert generate(folder, lines, "--resume") == 1
        assert (folder / "out.jsonl").read_bytes() == whole


def test_an_interrupted_run_exits_130_and_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = whole_run(folder)
    steps = 0
    forward = StubWorker.forward

    def interrupted(self: StubWorker, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 40:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(StubWorker, "forward", interrupted)
    assert generate(folder, lines) == 130
    assert 0 < len(records(folder)) < 22
    assert generate(folder, lines, "--resume") == 1
    assert (folder / "out.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_an_error_in_the_engine_exits_3_and_keeps_what_was_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: StubWorker, plan: Any) -> Any:
        raise ValueError("boom")

    monkeypatch.setattr(StubWorker, "forward", broken)
    assert generate(folder, BAD[0][0] + b"\n" + jsonl(GOOD[0])) == 3
    assert len(records(folder)) <= 1


def test_an_output_that_exists_is_kept_unless_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder, jsonl(GOOD[0])) == 0
    before = (folder / "out.jsonl").read_bytes()
    assert generate(folder, jsonl(GOOD[1])) == 2
    assert "--resume goes on where it ends, --overwrite replaces it" in capsys.readouterr().err
    assert (folder / "out.jsonl").read_bytes() == before
    assert generate(folder, jsonl(GOOD[1]), "--overwrite") == 0
    assert records(folder)[0]["custom_id"] == 7


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b'{"index": 0}\n', "line 1 is not record 0 of an output"),
        (b"nonsense\n", "line 1 is not record 0 of an output"),
        (
            b'{"index":0,"custom_id":"b","outputs":[],"prompt_logprobs":null,"seq_seed":null,"error":null}\n',
            "belongs to another input",
        ),
        (
            b'{"index":0,"custom_id":"a","outputs":[],"prompt_logprobs":null,"seq_seed":null,"error":null}\n'
            b'{"index":1,"custom_id":"a","outputs":[],"prompt_logprobs":null,"seq_seed":null,"error":null}\n',
            "holds 2 records, but the input has only 1 lines",
        ),
    ],
)
def test_resuming_another_file_is_refused_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], output: bytes, message: str
) -> None:
    (folder / "out.jsonl").write_bytes(output)
    assert generate(folder, jsonl(GOOD[0]), "--resume") == 2
    assert message in capsys.readouterr().err
    assert (folder / "out.jsonl").read_bytes() == output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature"),
        (["--max-num-seqs", "0"], "max_num_seqs: got 0"),
        (["--device", "ascend"], "device: 'ascend' is not supported yet"),
        (["--max-line-bytes", "0"], "--max-line-bytes: got 0"),
        (["--output", "-", "--resume"], "need an --output file"),
        (["--output", "/no/such/folder/out"], "/no/such/folder/out: cannot be written"),
        (["--output", "/dev"], "/dev is a folder"),
        (["--output", "/dev/null", "--resume"], "cannot be resumed"),
        (["--input", "/no/such/file"], "/no/such/file cannot be read"),
        (["--model", "/no/such/model"], "neither 'tiny', nor a folder that exists, nor a hub id"),
    ],
)
def test_bad_options_exit_2_and_say_why(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert generate(folder, jsonl(GOOD[0]), *options) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "out.jsonl").exists()


def test_input_and_output_may_not_be_one_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(folder, jsonl(GOOD[0]), "--overwrite", output="in.jsonl") == 2
    assert "are the same file" in capsys.readouterr().err
    assert (folder / "in.jsonl").read_bytes() == jsonl(GOOD[0])


@pytest.mark.parametrize("options", [[], ["--input", "a", "--prompt", "b"], ["--prompt", "a", "--nonsense"]])
def test_a_bad_command_line_exits_2(options: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--model", "tiny", *options])
    assert caught.value.code == 2


def test_standard_input_to_standard_output(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(jsonl(GOOD[1]) + b"{\n")))
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    assert main(["generate", "--model", str(folder / "model"), "--input", "-", *LIMITS]) == 1
    assert [json.loads(line)["error"] is None for line in written.getvalue().splitlines()] == [True, False]


def test_prompts_on_the_command_line_print_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--max-tokens", "5", "--temperature", "0"]
    assert main(["generate", "--model", str(folder / "model"), "--prompt", "the", "--prompt", "and", *options]) == 0
    llm: LLM = stub_llm(monkeypatch, folder / "model")[0]
    outputs = llm.generate(["the", "and"], SamplingParams(max_tokens=5, temperature=0), use_tqdm=False)
    captured = capsys.readouterr()
    assert captured.out == "".join(f"{one.prompt}{one.outputs[0].text}\n\n" for one in outputs)
    assert "10 tokens in" in captured.err
