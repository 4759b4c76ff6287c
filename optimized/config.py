"""Engine options: one frozen dataclass, checked when it is made.

Knows what each option means and which values it takes; knows nothing about how the engine uses them, about environment
variables (environ.py) or about weights.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from reference.spec.errors import ConfigError, nearest, shown
from reference.spec.sampling import LARGEST, LogprobsMode
from reference.spec.speculation import Verification

if TYPE_CHECKING:
    from reference.spec.config import ModelConfig

YOCO_MODES = ("off", "mask", "compact")

VerificationLengths = Literal["fixed", "scheduled"]
"""How many drafts a step verifies. fixed: all of them. scheduled: as many as are worth their time."""

Temperatures = tuple[float, ...]
Path = str | os.PathLike[str]

_DEFAULT_BATCHED_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of `LLM(model, **options)`.

    Args:
        max_num_seqs: most sequences that hold cache pages at one time; each sample of a request with n > 1 is a
            sequence.
        max_num_batched_tokens: most token rows of one step; longer prompts are computed in chunks. None: 2048, or
            max_num_seqs * (nextn + 1) if that is more.
        max_model_len: most tokens of a sequence, prompt and output together. None: the model's max_position_embeddings.
        page_size: tokens in a page of the compressed-KV pool.
        num_pages: pages of that pool, page 0 (reserved) included. None: as many as max_num_seqs sequences of
            max_model_len tokens need, within gpu_memory_utilization of the free memory.
        gpu_memory_utilization: share of the device's memory (main memory on CPU) that weights and caches may take, 0
            to 1.
        device: "auto" (the CPU), "cpu", "cuda" or "cuda:1", …; on CUDA the portable operations run, in float64, so that
            it serves to test models of test size, not to serve large ones.
        enforce_eager: never capture decode steps as CUDA graphs; no result depends on it, and on the CPU nothing does.
        sync_guard: for debugging: what makes the host wait for a CUDA device while it launches a step raises; the
            results of a step are waited for elsewhere. On the CPU it does nothing.
        seed: makes a whole run repeatable: requests without a seq_seed of their own take theirs from a generator seeded
            with it. None: from the operating system.
        yoco_mode: bounded replay of the decoder layers (those from the last KV source on) in prefill. "off": all rows
            run; "compact": they run on the last yoco_keep_tokens rows of each prompt only; "mask": on all rows, with
            windows cut as for "compact", which gives the same results. The replay start belongs to the request for
            life, whatever its chunks and preemptions. A request with prompt_logprobs runs all rows.
        yoco_keep_tokens: rows kept; at least sliding_window + nextn + 1, if not "off".
        async_scheduling: the next decode step is planned and launched before the tokens of the one in flight are known
            to the host; no result depends on it.
        poison_unused: for debugging: before each step, all pages and state slots that no request holds, page 0 and slot
            0 among them, and the padding rows are filled with NaN codes; no result depends on it.
        log_stats_interval: engine steps between two lines of statistics in the log, 0: never.
        logprobs_mode: what the logprobs of the output are told from: "raw_logprobs", the model's own logits, or
            "processed_logprobs", what the token was drawn from (bias, penalties, masks, temperature and filters
            applied; of a greedy request all but the last two). Those of the prompt are always raw.
        nextn: most tokens that the checkpoint's draft proposes for a sequence in a decode step, up to the draft's block
            size; the next step verifies them, and keeps those that the rule accepts. 0: no drafts.
        verification: the rule. "coupled": a draft is kept if the model would have drawn it; text and logprobs are those
            of nextn = 0, bit for bit. "ratio": kept with probability min(1, p / q); more are kept, and the text follows
            the same law without being the same text. Of a greedy request both keep what the argmax confirms.
        penalised_residual: with "ratio", what replaces a refused draft is drawn from max(p - exp(-5e-5) q, 0), as
            DeepInfer does, rather than from the exact max(p - q, 0).
        verification_lengths: "fixed": every draft is verified. "scheduled": as many drafts of a step, over all
            sequences, as give the most tokens in its time, the likeliest ones first; that the draft's confidence says,
            and a curve of what a step of so many rows takes.
        confidence_table: what turns the draft's confidences into probabilities: a file that `reference.calibration` has
            written for this nextn and rule, which serves the requests of its regime, greedy or drawn; or the
            temperatures themselves, one for all slots or nextn. None: 1.
        step_cost_folder: where that curve is kept from one start to the next, a file for each model, device and set of
            options; other files there are left alone. None: it is measured at each start.
        grammar_workers: most processes that compile grammars of structured requests, started when the first one comes.
        grammar_timeout: seconds to compile one grammar; one that takes longer ends its request with an error.
        grammar_cache_bytes: memory of the compiled grammars that are kept, least recently used ones dropped first.

    Raises:
        ConfigError: names the option, the value it got and what is accepted.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    page_size: int = 128
    num_pages: int | None = None
    gpu_memory_utilization: float = 0.9
    device: str = "auto"
    enforce_eager: bool = False
    sync_guard: bool = False
    seed: int | None = None
    log_stats_interval: int = 0
    yoco_mode: str = "off"
    yoco_keep_tokens: int = 0
    async_scheduling: bool = True
    poison_unused: bool = False
    logprobs_mode: LogprobsMode = "raw_logprobs"
    nextn: int = 0
    verification: Verification = "coupled"
    penalised_residual: bool = False
    verification_lengths: VerificationLengths = "fixed"
    confidence_table: Path | Temperatures | None = None
    step_cost_folder: Path | None = None
    grammar_workers: int = 2
    grammar_timeout: float = 20.0
    grammar_cache_bytes: int = 2**30

    def __post_init__(self) -> None:
        for name, low, high in _INTEGER_RANGES:
            _check_integer(name, getattr(self, name), low, high)
        for name in ("max_num_batched_tokens", "max_model_len", "num_pages", "seed"):
            if getattr(self, name) is not None:
                low, high = _OPTIONAL_RANGES[name]
                _check_integer(name, getattr(self, name), low, high)
        share = self.gpu_memory_utilization
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise ConfigError(f"gpu_memory_utilization: got {shown(share)}; accepted: a number above 0, at most 1")
        limit = self.grammar_timeout
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= LARGEST:
            raise ConfigError(f"grammar_timeout: got {shown(limit)}; accepted: a finite number of seconds above 0")
        for name in ("async_scheduling", "poison_unused", "enforce_eager", "sync_guard", "penalised_residual"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: got {shown(getattr(self, name))}; accepted: True or False")
        if self.yoco_mode not in YOCO_MODES:
            raise ConfigError(f"yoco_mode: got {shown(self.yoco_mode)}; accepted: one of {', '.join(YOCO_MODES)}")
        if not isinstance(self.device, str):
            raise ConfigError(f"device: got {shown(self.device)}; accepted: a string such as 'auto' or 'cpu'")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                accepted = " or ".join(map(repr, choices))
                raise ConfigError(f"{name}: got {shown(getattr(self, name))}; accepted: {accepted}")
        self._check_speculation()
        budget, rows = self.max_num_batched_tokens, self.max_num_seqs * (self.nextn + 1)
        if budget is not None and budget < rows:
            raise ConfigError(
                f"max_num_batched_tokens: got {budget}; accepted: at least max_num_seqs * (nextn + 1) = {rows}, since "
                "a decode step has one row for each running sequence, and one for each of its drafts"
            )

    def _check_speculation(self) -> None:
        if self.verification_lengths == "scheduled" and not self.nextn:
            raise ConfigError(
                "verification_lengths: got 'scheduled', which needs nextn of at least 1; accepted with nextn = 0: "
                "'fixed'"
            )
        if self.penalised_residual and self.verification != "ratio":
            raise ConfigError("penalised_residual: got True; accepted: False, but with verification = 'ratio'")
        if self.page_size < self.nextn + 1:
            raise ConfigError(f"page_size: got {self.page_size}; accepted: at least nextn + 1 = {self.nextn + 1}")
        folder = self.step_cost_folder
        if folder is not None and (folder == "" or not isinstance(folder, str | os.PathLike)):
            raise ConfigError(f"step_cost_folder: got {shown(folder)}; accepted: a folder, or None")
        table = self.confidence_table
        if table is None or isinstance(table, str | os.PathLike):
            return
        accepted = f"a file, or 1 or nextn = {self.nextn} finite numbers above 0"
        numbers = isinstance(table, list | tuple) and all(type(one) in (int, float) for one in table)
        if not numbers or len(table) not in (1, self.nextn) or not all(0 < one <= LARGEST for one in table):
            raise ConfigError(f"confidence_table: got {shown(table)}; accepted: {accepted}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> EngineConfig:
        """The configuration that keyword arguments describe; an unknown name raises and names the nearest."""
        known = option_names()
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown engine option {name!r}{nearest(name, known)}; options: {', '.join(known)}")
        return cls(**options)

    def resolved(self, model: ModelConfig, device: str) -> EngineConfig:
        """The same configuration for one model on one device: lengths and budgets that were None are numbers; num_pages
        stays as given, since only the worker knows how much memory is free.

        Args:
            device: what "auto" means.
        Raises:
            ConfigError: max_model_len is beyond what the model's positions reach, yoco_keep_tokens is below what
                decoding reads, or nextn is beyond what the checkpoint's draft proposes.
        """
        limit = model.max_position_embeddings
        length = limit if self.max_model_len is None else self.max_model_len
        if length > limit:
            raise ConfigError(
                f"max_model_len: got {length}; accepted: at most {limit}, the model's max_position_embeddings"
            )
        self._check_replay(model)
        most = model.dspark_block_size if model.has_draft else 0
        if self.nextn > most:
            draft = f"the draft's block size is {most}" if most else "the checkpoint has no draft"
            raise ConfigError(f"nextn: got {self.nextn}; accepted: 0 to {most}; {draft}")
        budget = self.max_num_batched_tokens
        if budget is None:
            budget = max(_DEFAULT_BATCHED_TOKENS, self.max_num_seqs * (self.nextn + 1))
        return dataclasses.replace(self, max_model_len=length, max_num_batched_tokens=budget, device=device)

    def _check_replay(self, model: ModelConfig) -> None:
        if self.yoco_mode == "off":
            return
        if not model.kv_source_layer_ids:
            raise ConfigError(
                f"yoco_mode: got {shown(self.yoco_mode)}; accepted: off, for a model without KV source layers"
            )
        least = model.sliding_window + self.nextn + 1
        if self.yoco_keep_tokens < least:
            raise ConfigError(
                f"yoco_keep_tokens: got {self.yoco_keep_tokens}; accepted: at least {least} = sliding_window "
                f"{model.sliding_window} + nextn {self.nextn} + 1, so that what a rejected draft rewinds to "
                "has its window"
            )

    def replay_start(self, prompt_len: int) -> int:
        """First position that a prompt's decoder windows may hold, fixed for the life of its request."""
        return 0 if self.yoco_mode == "off" else max(0, prompt_len - self.yoco_keep_tokens)


def option_names() -> list[str]:
    """The names of all engine options, in order of declaration."""
    return [field.name for field in fields(EngineConfig)]


_INTEGER_RANGES: tuple[tuple[str, int, int], ...] = (
    ("max_num_seqs", 1, 65536),
    ("page_size", 1, 65536),
    ("log_stats_interval", 0, 2**31 - 1),
    ("yoco_keep_tokens", 0, 2**30),
    ("nextn", 0, 1024),
    ("grammar_workers", 1, 1024),
    ("grammar_cache_bytes", 0, 2**62),
)
_CHOICES: dict[str, tuple[Any, ...]] = {
    "logprobs_mode": get_args(LogprobsMode),
    "verification": get_args(Verification),
    "verification_lengths": get_args(VerificationLengths),
}
_OPTIONAL_RANGES: dict[str, tuple[int, int]] = {
    "max_num_batched_tokens": (1, 2**24),
    "max_model_len": (2, 2**30),
    "num_pages": (2, 2**31 - 1),
    "seed": (0, 2**64 - 1),
}


def _check_integer(name: str, value: Any, low: int, high: int) -> None:
    """Refuses anything but an integer of [low, high]; True and 1.0 are not integers here."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name}: got {shown(value)}; accepted: an integer from {low} to {high}")
