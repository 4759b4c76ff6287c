"""Engine options and DEEPINFER_* variables: what is accepted, what is refused, and that a refusal says enough."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from optimized import LLM, environ
from optimized.config import EngineConfig
from optimized.model.tests.random_models import FULL, RATIO_4, WINDOWS
from optimized.platforms import resolve
from optimized.tests.stub import CONTEXT, model_folder
from reference.spec.config import ModelConfig
from reference.spec.errors import CheckpointError, ConfigError, UnsupportedError

pytestmark = pytest.mark.ci


@pytest.fixture
def model(tmp_path: Path) -> ModelConfig:
    return ModelConfig.from_file(model_folder(tmp_path, tokenizer=False))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_seqs", 4.0),
        ("max_num_seqs", "4"),
        ("max_num_seqs", 2**63),
        ("max_num_batched_tokens", 3),
        ("max_model_len", 1),
        ("page_size", -1),
        ("num_pages", 1),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("gpu_memory_utilization", True),
        ("device", None),
        ("enforce_eager", 1),
        ("sync_guard", "no"),
        ("seed", -1),
        ("seed", 2**64),
        ("log_stats_interval", -1),
        ("yoco_mode", "Mask"),
        ("yoco_mode", None),
        ("yoco_keep_tokens", -1),
        ("async_scheduling", 1),
        ("poison_unused", "yes"),
        ("nextn", -1),
        ("nextn", True),
        ("nextn", "5"),
        ("verification", "greedy"),
        ("verification", None),
        ("penalised_residual", 1),
        ("penalised_residual", True),
        ("verification_lengths", "varlen"),
        ("verification_lengths", "scheduled"),
        ("confidence_table", 3),
        ("confidence_table", (0.0,)),
        ("confidence_table", (1.0, 2.0)),
        ("confidence_table", (float("nan"),)),
        ("confidence_table", (10**400,)),
        ("grammar_timeout", 10**400),
        ("step_cost_folder", ""),
        ("confidence_table", (True,)),
        ("step_cost_folder", 7),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_what_is_accepted(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name}.*got.*accepted"):
        EngineConfig.from_options({"max_num_seqs": 8, name: value})


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown engine option 'max_num_seq'.*'max_num_seqs'"):
        EngineConfig.from_options({"max_num_seq": 8})


@pytest.mark.parametrize(
    ("typo", "name"),
    [
        ("nexn", "nextn"),
        ("yoco_mod", "yoco_mode"),
        ("max_num_batch_tokens", "max_num_batched_tokens"),
        ("max_seqs", "max_num_seqs"),
        ("tensor_parallel_size", None),
        ("enable_lora", None),
        ("quantization", None),
        ("kv_cache_dtype", None),
    ],
)
def test_only_a_misspelling_has_a_nearest_option(typo: str, name: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options({typo: 1})
    hint = f"; nearest is {name!r}" if name else ""
    assert f"unknown engine option {typo!r}{hint}; options: " in str(caught.value)


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().seed = 1  # type: ignore[misc]


def test_lengths_come_from_the_model_and_may_not_pass_it(model: ModelConfig) -> None:
    config = EngineConfig(max_num_seqs=3000).resolved(model, "cpu")
    assert (config.max_model_len, config.max_num_batched_tokens, config.device) == (CONTEXT, 3000, "cpu")
    with pytest.raises(ConfigError, match=f"max_model_len: got {CONTEXT + 1}; accepted: at most {CONTEXT}"):
        EngineConfig(max_model_len=CONTEXT + 1).resolved(model, "cpu")


@pytest.mark.parametrize(("drafts", "least"), [(0, 9), (1, 10), (3, 12)])
def test_replay_keeps_what_decoding_reads(drafts: int, least: int) -> None:
    model = FULL if drafts else RATIO_4
    options: dict[str, Any] = {"nextn": drafts}
    accepted = f"yoco_keep_tokens: got {least - 1}; accepted: at least {least} = sliding_window 8 . nextn {drafts} . 1"
    with pytest.raises(ConfigError, match=accepted):
        EngineConfig(yoco_mode="mask", yoco_keep_tokens=least - 1, **options).resolved(model, "cpu")
    config = EngineConfig(yoco_mode="compact", yoco_keep_tokens=least, **options).resolved(model, "cpu")
    assert [config.replay_start(length) for length in (1, least, least + 1, 100)] == [0, 0, 1, 100 - least]
    assert EngineConfig(yoco_keep_tokens=3).resolved(model, "cpu").replay_start(100) == 0
    with pytest.raises(ConfigError, match="without KV source layers"):
        EngineConfig(yoco_mode="mask", yoco_keep_tokens=99).resolved(WINDOWS, "cpu")


def test_drafts_must_fit_the_checkpoint_and_the_step(model: ModelConfig) -> None:
    assert EngineConfig(nextn=3).resolved(FULL, "cpu").nextn == 3
    with pytest.raises(ConfigError, match="nextn: got 4; accepted: 0 to 3; the draft's block size is 3"):
        EngineConfig(nextn=4).resolved(FULL, "cpu")
    with pytest.raises(ConfigError, match="nextn: got 1; accepted: 0 to 0; the checkpoint has no draft"):
        EngineConfig(nextn=1).resolved(RATIO_4, "cpu")
    with pytest.raises(ConfigError, match=r"got 'scheduled', which needs nextn of at least 1; .* nextn = 0: 'fixed'"):
        EngineConfig(verification_lengths="scheduled")
    with pytest.raises(ConfigError, match=r"page_size: got 3; accepted: at least nextn \+ 1 = 4"):
        EngineConfig(nextn=3, page_size=3)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens: got 31; .* max_num_seqs \* \(nextn \+ 1\) = 32"):
        EngineConfig(nextn=3, max_num_seqs=8, max_num_batched_tokens=31)
    assert EngineConfig(nextn=3, max_num_seqs=1000).resolved(FULL, "cpu").max_num_batched_tokens == 4000


def test_a_table_that_cannot_be_read_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)  # it has no weights
    with pytest.raises(ConfigError, match=r"confidence_table: .*none\.json"):
        LLM(folder, nextn=2, confidence_table=tmp_path / "none.json")
    with pytest.raises(CheckpointError):
        LLM(folder, nextn=2)


def test_published_names_of_speculation_set_its_options() -> None:
    names = {
        "DEEPINFER_USE_NEXTN_DECODE": "3",
        "DEEPINFER_ENABLE_MTP_VARLEN": "1",
        "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1.5,2,0.5",
        "DEEPINFER_DECODE_PERF_CACHE_DIR": "/costs",
    }
    found = environ.overrides(names)
    assert found == {
        "nextn": 3,
        "verification_lengths": "scheduled",
        "confidence_table": (1.5, 2.0, 0.5),
        "step_cost_folder": "/costs",
    }
    assert EngineConfig.from_options(found).nextn == 3
    off = {"DEEPINFER_ENABLE_MTP_VARLEN": "off", "DEEPINFER_DECODE_PERF_CACHE_DIR": ""}
    assert environ.overrides(off) == {"verification_lengths": "fixed", "step_cost_folder": None}
    with pytest.raises(ConfigError, match="DEEPINFER_USE_NEXTN_DECODE: got 'five'; accepted: a decimal integer"):
        environ.overrides({"DEEPINFER_USE_NEXTN_DECODE": "five"})


def test_devices_that_do_not_run_yet_are_told_from_words_that_are_none() -> None:
    assert resolve("auto") == resolve("cpu") == "cpu"
    with pytest.raises(UnsupportedError, match="'ascend:1' is not supported yet; accepted: auto, cpu, cuda"):
        resolve("ascend:1")
    with pytest.raises(ConfigError, match=r"'cpuu'; nearest is 'cpu'"):
        resolve("cpuu")
    with pytest.raises(ConfigError, match=r"got 'cuda:x'.*accepted: auto, cpu, cuda"):
        resolve("cuda:x")


def test_a_cuda_device_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [resolve("cuda"), resolve("cuda:1")] == ["cuda:0", "cuda:1"]
    with pytest.raises(ConfigError, match=r"got 'cuda:2', but torch .* accepted: auto, cpu, cuda:0, cuda:1"):
        resolve("cuda:2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"got 'cuda', but torch .* sees no such device here; accepted: auto, cpu$"):
        resolve("cuda")


def test_an_honoured_variable_overrides_the_option(caplog: pytest.LogCaptureFixture) -> None:
    merged = environ.merged(
        {"log_stats_interval": 3, "seed": 1}, {"DEEPINFER_LOGGING_INTERVAL_STEP": "50", "PATH": "/"}
    )
    assert merged == {"log_stats_interval": 50, "seed": 1}
    assert "overrides log_stats_interval=3 with 50" in caplog.text
    replay = {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "compact", "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": "140"}
    assert environ.overrides({"DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "off"}) == {"async_scheduling": False}
    assert environ.overrides({"DEEPINFER_ENFORCE_EAGER": "1"}) == {"enforce_eager": True}
    assert environ.overrides({"DEEPINFER_DISABLE_SYNC_GUARD": "0"}) == {"sync_guard": True}
    assert environ.merged({}, replay) == {"yoco_mode": "compact", "yoco_keep_tokens": 140}


@pytest.mark.parametrize(
    ("text", "value"), [("FALSE", False), ("no", False), ("off", False), ("", False), ("On", True)]
)
def test_booleans_mean_what_they_say(text: str, value: bool) -> None:
    assert environ.parse_bool(text) is value


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("ENABLE_MTP_VARLEN", "2", "1, true, yes, on or 0, false, no, off"),
        ("ENABLE_MTP_VARLEN", "maybe", "1, true, yes, on or 0, false, no, off"),
        ("LOGGING_INTERVAL_STEP", "", "a decimal integer"),
        ("LOGGING_INTERVAL_STEP", "1e3", "a decimal integer"),
        ("LOGGING_INTERVAL_STEP", "--1", "a decimal integer"),
        ("LOGGING_INTERVAL_STEP", "9" * 30, "a decimal integer"),
        ("LOGGING_INTERVAL_STEP", "٣", "a decimal integer"),
        ("FORCE_IMBALANCE_RATIO", "nan", "a finite decimal number"),
        ("YOCO_PREFILL_TRUNCATION_MODE", "Mask", "one of off, mask, compact"),
        ("DECODE_TOKEN_BLACKLIST", "3..1", "strictly increasing"),
        ("DECODE_TOKEN_BLACKLIST", "1,1", "strictly increasing"),
        ("DECODE_TOKEN_BLACKLIST", "٣", "strictly increasing"),
        *(("DFLASH_CONFIDENCE_HEAD_TEMPERATURE", text, "a finite decimal number") for text in ("1,,2", "1_0", "٣", "")),
    ],
)
def test_a_bad_variable_is_refused_with_its_name_and_what_is_accepted(name: str, text: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        environ.overrides({f"DEEPINFER_{name}": text})
    assert f"DEEPINFER_{name}: got {text!r}; accepted: " in str(caught.value)
    assert accepted in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ENABLE_MTP_VARLEN": "1"}, "verification_lengths: got 'scheduled', which needs nextn of at least 1"),
        ({"ENABLE_MTP_VARLEN": "1", "USE_NEXTN_DECODE": "0"}, "verification_lengths: got 'scheduled'"),
        ({"SO_BUILDER_CPUS": "0"}, "grammar_workers: got 0; accepted: an integer from 1"),
        ({"DFLASH_CONFIDENCE_HEAD_TEMPERATURE": "1,2"}, "confidence_table: got (1.0, 2.0)"),
        ({"USE_NEXTN_DECODE": "99"}, "nextn: got 99; accepted: 0 to "),
    ],
)
def test_a_bad_option_names_the_variables_it_comes_from(
    variables: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = model_folder(tmp_path)
    monkeypatch.setenv("DEEPINFER_ENFORCE_EAGER", "1")  # has no part in it
    for name, text in variables.items():
        monkeypatch.setenv(f"DEEPINFER_{name}", text)
    with pytest.raises(ConfigError) as caught:
        LLM(folder)
    message, _, origins = str(caught.value).partition("; set in the environment: ")
    assert told in message
    assert origins == ", ".join(f"DEEPINFER_{name}={text!r}" for name, text in variables.items())


def test_a_bad_option_given_in_code_names_no_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEPINFER_SO_BUILDER_CPUS", "2")
    for options in ({"page_size": 0}, {"enable_lora": True}):
        with pytest.raises(ConfigError) as caught:
            LLM(model_folder(tmp_path), **options)
        assert "DEEPINFER" not in str(caught.value)


def test_token_ranges_are_read_as_published() -> None:
    assert environ.parse_token_ranges("0..3,7,10..12") == (0, 1, 2, 3, 7, 10, 11, 12)


def test_an_unknown_variable_is_reported_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    assert environ.overrides({"DEEPINFER_USE_NEXTN": "5"}) == {}
    assert "unknown environment variable DEEPINFER_USE_NEXTN; nearest is 'DEEPINFER_USE_NEXTN_DECODE'" in caplog.text


def test_a_known_variable_without_effect_is_reported_unless_it_asks_for_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    nothing = {
        "COMPUTE_SUM_SMALLER_PROBS": "0",
        "BATCH_INVARIANT": "1",
        "CUDAGRAPH_BATCH_SIZE_INTERVAL": "8",
        "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL": "8",
        "DFLASH_ENFORCE_EAGER": "0",
        "ENGRAM_FORCE_GPU_STORAGE": "1",
        "MAX_BACKTRACKING_TOKENS": "1",
    }
    assert environ.overrides({f"DEEPINFER_{name}": text for name, text in nothing.items()}) == {}
    assert caplog.text == ""
    environ.overrides({"DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL": "5"})
    assert "DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL=5 is not supported yet and has no effect" in caplog.text
