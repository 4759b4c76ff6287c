"""`DEEPINFER_*` environment variables as overrides of engine options, parsed strictly.

Knows the published names, their types, and which of them the engine honours; knows nothing about what an option does.
Names and published meanings: DeepInfer 0.1.0 (PyPI). A variable that is honoured replaces the option of the same
meaning; one whose value asks for what the engine does anyway is accepted in silence; any other known one is reported
as not supported yet; an unknown name is reported with the nearest known one. Nothing is cached: each engine reads its
own.
"""

from __future__ import annotations

import logging
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from optimized.config import YOCO_MODES, option_names
from reference.spec.errors import ConfigError, nearest, shown

PREFIX = "DEEPINFER_"
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")
NO_LIMIT = 2**62

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_WORD = re.compile(r"\w+")

_log = logging.getLogger(__name__)


def parse_bool(text: str) -> bool:
    """One of 1 true yes on / 0 false no off, in any case of letters; nothing at all is false, as published."""
    word = text.strip().lower() or FALSE_WORDS[0]
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(f"one of {', '.join(TRUE_WORDS)} or {', '.join(FALSE_WORDS)}, in upper or lower case")


def parse_int(text: str) -> int:
    """A decimal integer, with a sign at most."""
    if not _INTEGER.fullmatch(text.strip()):
        raise ValueError("a decimal integer such as 0 or 128")
    return int(text)


def parse_float(text: str) -> float:
    """A finite decimal number."""
    accepted = "a finite decimal number such as 0.5"
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(accepted) from error
    if not math.isfinite(value) or not text.isascii() or "_" in text:
        raise ValueError(accepted)
    return value


def parse_text(text: str) -> str:
    """Any text."""
    return text


def parse_choice(*choices: str) -> Callable[[str], str]:
    """A parser that takes exactly one of `choices`."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def parse_token_ranges(text: str) -> tuple[int, ...]:
    """Token ids such as `0..3,7,10..12`, strictly increasing; both ends of a range belong to it."""
    accepted = "token ids and ranges in strictly increasing order, such as 0..3,7,10..12"
    if not text.isascii():
        raise ValueError(accepted)
    ids: list[int] = []
    for part in text.split(",") if text.strip() else []:
        first, dots, last = part.partition("..")
        if not first.strip().isdecimal() or (dots and not last.strip().isdecimal()) or len(first + last) > 18:
            raise ValueError(accepted)
        low, high = int(first), int(last if dots else first)
        if high < low or (ids and low <= ids[-1]) or high - low >= 2**20:
            raise ValueError(accepted)
        ids.extend(range(low, high + 1))
    return tuple(ids)


def parse_number_list(text: str) -> tuple[float, ...]:
    """One finite number, or several with commas between them."""
    return tuple(parse_float(part) for part in text.split(","))


@dataclass(frozen=True)
class Variable:
    """One published variable.

    parse: text -> value, ValueError(what is accepted) otherwise.
    option: the engine option that it overrides, None if there is none yet.
    convert: published value -> value of the option, None: the same.
    satisfied: values that ask for what the engine does in any case.
    """

    parse: Callable[[str], Any]
    option: str | None = None
    convert: Callable[[Any], Any] | None = None
    satisfied: tuple[Any, ...] = ()


_OFF = (False,)
_ZERO = (0,)
_BUCKETS = (8,)  # worker/input_batch.py

VARIABLES: dict[str, Variable] = {
    "ACCELERATOR": Variable(parse_text),
    "BATCH_INVARIANT": Variable(parse_bool, satisfied=(True, False)),  # always on: off asks for nothing less
    "COMPUTE_SUM_SMALLER_PROBS": Variable(parse_bool, satisfied=_OFF),
    "CPP_LOG_LEVEL": Variable(parse_choice("off", "error", "warn", "info")),
    "CUDAGRAPH_BATCH_SIZE_INTERVAL": Variable(parse_int, satisfied=_BUCKETS),
    "DECODE_PERF_CACHE_DIR": Variable(parse_text, option="step_cost_folder", convert=lambda folder: folder or None),
    "DECODE_PERF_CACHE_TTL_SEC": Variable(parse_int),
    "DECODE_TOKEN_BLACKLIST": Variable(parse_token_ranges, satisfied=((),)),
    "DFLASH_CONFIDENCE_HEAD_TEMPERATURE": Variable(parse_number_list, option="confidence_table"),
    "DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL": Variable(parse_int, satisfied=_BUCKETS),
    "DFLASH_ENFORCE_EAGER": Variable(parse_bool, satisfied=_OFF),
    "DISABLE_SYNC_GUARD": Variable(parse_bool, option="sync_guard", convert=operator.not_),
    "ENABLE_MEMORY_TRACING": Variable(parse_bool, satisfied=_OFF),
    "ENABLE_MTP_VARLEN": Variable(
        parse_bool, option="verification_lengths", convert=lambda varies: "scheduled" if varies else "fixed"
    ),
    "ENFORCE_EAGER": Variable(parse_bool, option="enforce_eager"),
    "ENGRAM_FORCE_GPU_STORAGE": Variable(parse_bool, satisfied=(True,)),  # they are nowhere else
    "ENGRAM_PAD_TOKEN": Variable(parse_int),
    "EXPERT_COUNT_WINDOW_SIZE": Variable(parse_int),
    "EXPERT_REARRANGEMENT_STEP_INTERVAL": Variable(parse_int, satisfied=_ZERO),
    "FORCE_IMBALANCE_RATIO": Variable(parse_float, satisfied=(0.0,)),
    "FORCE_LOAD_BALANCE": Variable(parse_bool, satisfied=_OFF),
    "FUSED_SAMPLE_DETAIL_LOG": Variable(parse_text),
    "FUSED_SAMPLE_STRESS_TEST": Variable(parse_int),
    "GC_INTERVAL_STEP": Variable(parse_int),
    "GLOO_TIMEOUT": Variable(parse_int),
    "HF_MODEL_DIR": Variable(parse_text),
    "INDEX_ATTN_MEMORY_LIMIT": Variable(parse_int),
    "JIT_CACHE_DIR": Variable(parse_text),
    "LOGGING_INTERVAL_STEP": Variable(parse_int, option="log_stats_interval", convert=lambda steps: max(steps, 0)),
    "MAX_BACKTRACKING_TOKENS": Variable(parse_int, satisfied=(0, 1)),  # published: never fewer than nextn + 1
    "MOE_LB_STAT_INTERVAL": Variable(parse_int),
    "MULTI_MODAL_BUFFER_SIZE": Variable(parse_int),
    "MULTI_MODAL_WORKER_TIMEOUT": Variable(parse_float),
    "MULTIMODAL_POOL_SIZE_GB": Variable(parse_int),
    "NCCL_MEMORY_SAMPLE_INTERVAL_STEPS": Variable(parse_int),
    "NCCL_NUM_SMS": Variable(parse_int),
    "NUM_STATE_SLOTS_RATIO": Variable(parse_float),
    "OVERRIDE_NUM_EXTRA_EXPERTS": Variable(parse_int, satisfied=_ZERO),
    "PREFILL_ANY_ATTEMPT_INTERVAL": Variable(parse_int),
    "PREFILL_ATTEMPT_INTERVAL": Variable(parse_int),
    "PREFILL_STORE_EXTRA_SIZE": Variable(parse_int),
    "PREFILL_MAX_SUM_SEQLEN_K": Variable(parse_int),
    "PREFILL_STORE_EXTRA_STATE": Variable(parse_bool, satisfied=_OFF),
    "PROFILE_HTTP_ENABLE": Variable(parse_bool, satisfied=_OFF),
    "PROFILE_HTTP_PORT_BASE": Variable(parse_int),
    "PROFILE_TORCH_CUDA_MEMORY": Variable(parse_text),
    "REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": Variable(parse_bool, satisfied=_OFF),
    "REARRANGE_P2P_GROUPS": Variable(parse_int),
    "RINGBUFFER_WARNING_INTERVAL": Variable(parse_int),
    "SAMPLER_FORCE_TOPK": Variable(parse_int, satisfied=_ZERO),
    "SHOW_EPLB_DETAIL": Variable(parse_bool, satisfied=_OFF),
    "SO_BUILDER_CPUS": Variable(parse_int, option="grammar_workers"),
    "TORCH_PROFILER_DIR": Variable(parse_text),
    "USERBUFFER_COMM_SMS": Variable(parse_int, satisfied=_ZERO),
    "USE_MULTIMODAL_POOL": Variable(parse_bool, satisfied=_OFF),
    "USE_NEXTN_DECODE": Variable(parse_int, option="nextn"),
    "XGRAMMAR_CACHE_LIMIT_BYTES": Variable(
        parse_int, option="grammar_cache_bytes", convert=lambda size: size if size >= 0 else NO_LIMIT
    ),
    "XGRAMMAR_DEBUG": Variable(parse_bool, satisfied=_OFF),
    "XGRAMMAR_DISABLE_CACHE": Variable(parse_bool, satisfied=_OFF),
    "XGRAMMAR_TIMEOUT": Variable(parse_int, option="grammar_timeout"),
    "YOCO_PREFILL_KEEP_TOKENS": Variable(parse_int, option="yoco_keep_tokens"),
    "YOCO_PREFILL_TRUNCATION_MODE": Variable(parse_choice(*YOCO_MODES), option="yoco_mode"),
    "ZERO_OVERHEAD_SCHEDULING": Variable(parse_bool, option="async_scheduling"),
}


def overrides(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Engine options that the environment sets.

    Args:
        environment: name -> text; None: the process's own.
    Returns:
        option name -> value, for `EngineConfig.from_options`.
    Raises:
        ConfigError: a known variable holds a bad value; names the variable, the value and what is accepted.
    """
    source = os.environ if environment is None else environment
    known = [PREFIX + name for name in VARIABLES]
    found: dict[str, Any] = {}
    for full_name in sorted(name for name in source if name.startswith(PREFIX)):
        variable = VARIABLES.get(full_name.removeprefix(PREFIX))
        if variable is None:
            _log.warning("unknown environment variable %s%s", full_name, nearest(full_name, known, PREFIX))
            continue
        try:
            value = variable.parse(source[full_name])
        except ValueError as error:
            raise ConfigError(f"{full_name}: got {source[full_name]!r}; accepted: {error}") from error
        if variable.option is not None:
            found[variable.option] = value if variable.convert is None else variable.convert(value)
        elif value not in variable.satisfied:
            _log.warning("%s=%s is not supported yet and has no effect", full_name, source[full_name])
    return found


def merged(options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`options` with the environment's overrides on top; a value that differs from one given in code is logged."""
    override = overrides(environment)
    for name, value in override.items():
        if name in options and options[name] != value:
            _log.warning("the environment overrides %s=%r with %r", name, options[name], value)
    return {**options, **override}


@contextmanager
def blamed(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Lets a ConfigError about an engine option that is raised inside name the variables that its options come from.

    Args:
        environment: as for `overrides`.
    """
    try:
        yield
    except ConfigError as error:
        source = os.environ if environment is None else environment
        option, colon, _ = str(error).partition(":")
        if not colon or option not in option_names():
            raise
        told = set(_WORD.findall(str(error)))
        variables = [PREFIX + name for name, one in VARIABLES.items() if one.option in told and PREFIX + name in source]
        if not variables:
            raise
        origins = ", ".join(f"{name}={shown(source[name])}" for name in variables)
        raise ConfigError(f"{error}; set in the environment: {origins}") from error
