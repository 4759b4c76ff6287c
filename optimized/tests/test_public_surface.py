"""The public surface, frozen: a change of a name here is a change for users, made on purpose or not at all."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

import optimized
from optimized import cli, environ
from optimized.commands import jsonl_input, jsonl_output
from optimized.config import EngineConfig
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci

EXPORTS = """LLM CheckpointError CompletionOutput ConfigError CounterpointError EngineConfig EngineError
    KernelUnavailableError Logprob RequestError RequestMetrics RequestOutput SamplingParams UnsupportedError"""
ENGINE_OPTIONS = """max_num_seqs max_num_batched_tokens max_model_len page_size num_pages gpu_memory_utilization device
    enforce_eager sync_guard seed log_stats_interval yoco_mode yoco_keep_tokens async_scheduling poison_unused
    logprobs_mode nextn verification penalised_residual verification_lengths confidence_table step_cost_folder
    grammar_workers grammar_timeout grammar_cache_bytes"""
GENERATE_OPTIONS = """--help --model --revision --prompt --input --output --resume --overwrite --max-line-bytes
    --progress --no-progress --log-level --n --max-tokens --min-tokens --temperature --top-k --top-p --min-p --seq-seed
    --logprobs --prompt-logprobs --presence-penalty --frequency-penalty --repetition-penalty
    --stop --stop-token-ids --ignore-eos --max-num-seqs --max-num-batched-tokens --max-model-len --page-size
    --num-pages --gpu-memory-utilization --device --enforce-eager --no-enforce-eager --sync-guard --no-sync-guard
    --seed --log-stats-interval --yoco-mode
    --yoco-keep-tokens --async-scheduling --no-async-scheduling --poison-unused --no-poison-unused
    --logprobs-mode --nextn --verification --penalised-residual --no-penalised-residual --verification-lengths
    --confidence-table --step-cost-folder --grammar-workers --grammar-timeout --grammar-cache-bytes"""
VARIABLES = """ACCELERATOR BATCH_INVARIANT COMPUTE_SUM_SMALLER_PROBS CPP_LOG_LEVEL CUDAGRAPH_BATCH_SIZE_INTERVAL
    DECODE_PERF_CACHE_DIR DECODE_PERF_CACHE_TTL_SEC DECODE_TOKEN_BLACKLIST DFLASH_CONFIDENCE_HEAD_TEMPERATURE
    DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL DFLASH_ENFORCE_EAGER DISABLE_SYNC_GUARD ENABLE_MEMORY_TRACING ENABLE_MTP_VARLEN
    ENFORCE_EAGER ENGRAM_FORCE_GPU_STORAGE ENGRAM_PAD_TOKEN EXPERT_COUNT_WINDOW_SIZE EXPERT_REARRANGEMENT_STEP_INTERVAL
    FORCE_IMBALANCE_RATIO FORCE_LOAD_BALANCE FUSED_SAMPLE_DETAIL_LOG FUSED_SAMPLE_STRESS_TEST GC_INTERVAL_STEP
    GLOO_TIMEOUT HF_MODEL_DIR INDEX_ATTN_MEMORY_LIMIT JIT_CACHE_DIR LOGGING_INTERVAL_STEP MAX_BACKTRACKING_TOKENS
    MOE_LB_STAT_INTERVAL MULTI_MODAL_BUFFER_SIZE MULTI_MODAL_WORKER_TIMEOUT MULTIMODAL_POOL_SIZE_GB
    NCCL_MEMORY_SAMPLE_INTERVAL_STEPS NCCL_NUM_SMS NUM_STATE_SLOTS_RATIO OVERRIDE_NUM_EXTRA_EXPERTS
    PREFILL_ANY_ATTEMPT_INTERVAL PREFILL_ATTEMPT_INTERVAL PREFILL_MAX_SUM_SEQLEN_K PREFILL_STORE_EXTRA_SIZE
    PREFILL_STORE_EXTRA_STATE PROFILE_HTTP_ENABLE PROFILE_HTTP_PORT_BASE PROFILE_TORCH_CUDA_MEMORY
    REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE REARRANGE_P2P_GROUPS RINGBUFFER_WARNING_INTERVAL SAMPLER_FORCE_TOPK
    SHOW_EPLB_DETAIL SO_BUILDER_CPUS TORCH_PROFILER_DIR USERBUFFER_COMM_SMS USE_MULTIMODAL_POOL USE_NEXTN_DECODE
    XGRAMMAR_CACHE_LIMIT_BYTES XGRAMMAR_DEBUG XGRAMMAR_DISABLE_CACHE XGRAMMAR_TIMEOUT YOCO_PREFILL_KEEP_TOKENS
    YOCO_PREFILL_TRUNCATION_MODE ZERO_OVERHEAD_SCHEDULING"""
LINE_KEYS = """custom_id prompt prompt_token_ids n temperature top_p top_k min_p max_tokens min_tokens stop
    stop_token_ids ignore_eos seq_seed logprobs prompt_logprobs presence_penalty frequency_penalty repetition_penalty
    logit_bias so_args"""
ERROR_KINDS = "too_long not_utf8 not_json not_object unknown_key bad_value not_supported request"
RECORD_KEYS = "index custom_id outputs prompt_logprobs seq_seed error"


def subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = cli.build_parser()._actions
    choices = next(action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings if name.startswith("--")}


def test_the_exports_are_these_and_each_resolves() -> None:
    assert set(optimized.__all__) == set(EXPORTS.split())
    assert all(hasattr(optimized, name) for name in optimized.__all__)


def test_the_engine_options_are_these() -> None:
    assert [field.name for field in dataclasses.fields(EngineConfig)] == ENGINE_OPTIONS.split()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("generate --model tiny --prompt x --max-token 3", "--max-token 3; nearest is '--max-tokens'"),
        ("generate --model tiny --prompt x --temprature=0", "--temprature=0; nearest is '--temperature'"),
        ("generate --model tiny --prompt x --best-of 3", "--best-of 3"),
        ("generate --model tiny --prompt x y", "y"),
        ("ops --jsn", "--jsn; nearest is '--json'"),
    ],
)
def test_an_unknown_option_names_the_nearest_of_its_command(
    arguments: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments.split())
    assert stopped.value.code == 2
    usage, *_, last = capsys.readouterr().err.splitlines()
    command = f"counterpoint {arguments.split()[0]}"
    assert usage.startswith(f"usage: {command} ")
    assert last == f"{command}: error: unrecognized arguments: {told}"


def test_the_commands_and_their_options_are_these() -> None:
    found = {name: options(parser) for name, parser in subcommands().items()}
    assert found == {
        "generate": set(GENERATE_OPTIONS.split()),
        "ops": {"--help", "--json"},
        "collect-env": {"--help", "--json"},
    }


def test_each_command_line_option_has_the_name_of_a_field() -> None:
    engine = {name[2:].replace("-", "_") for name, *_ in cli.ENGINE_OPTIONS}
    sampling = {name[2:].replace("-", "_") for name, *_ in cli.SAMPLING_OPTIONS}
    assert engine == {field.name for field in dataclasses.fields(EngineConfig)}
    assert sampling < {field.name for field in dataclasses.fields(SamplingParams)}


def test_the_environment_names_are_these() -> None:
    assert set(environ.VARIABLES) == set(VARIABLES.split())


def test_the_jsonl_vocabulary_is_this() -> None:
    assert tuple(LINE_KEYS.split()) == jsonl_input.KEYS
    assert tuple(ERROR_KINDS.split()) == jsonl_input.ERROR_KINDS
    assert tuple(RECORD_KEYS.split()) == jsonl_output.RECORD_KEYS


def test_the_exit_codes_are_these() -> None:
    codes = {name: value for name, value in vars(cli).items() if name.startswith("EXIT_")}
    assert codes == {
        "EXIT_OK": 0,
        "EXIT_SOME_FAILED": 1,
        "EXIT_USAGE": 2,
        "EXIT_STOPPED": 3,
        "EXIT_INTERRUPTED": 130,
        "EXIT_CLOSED_PIPE": 141,
    }
