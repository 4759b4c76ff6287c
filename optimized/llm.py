"""`LLM`: what users call.

Knows how the parts of the engine are put together and the shape of a call; knows nothing about how they work.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from optimized import environ, model_source, platforms
from optimized.config import EngineConfig
from optimized.engine.door import Door, Refusal, Request, params_list, prompt_list
from optimized.engine.engine import Engine
from optimized.engine.ordered_run import run_in_order
from optimized.engine.progress import Progress
from optimized.engine.seeds import SeedSource
from optimized.engine.statistics import Statistics
from optimized.engine.step_pipeline import Worker
from optimized.engine.verification_schedule import temperatures
from optimized.tokenizer import Tokenizer
from reference.spec.config import ModelConfig
from reference.spec.errors import EngineError, RequestError, shown
from reference.spec.outputs import RequestOutput
from reference.spec.sampling import SamplingParams


class LLM:
    """A loaded model, ready to generate.

        llm = LLM("tiny")
        outputs = llm.generate(["In the beginning"], SamplingParams(temperature=0, max_tokens=32))

    One call runs at a time: calls from other threads wait. Whatever ends a call early (an exception, Ctrl-C) leaves the
    object usable.
    """

    def __init__(self, model: str | os.PathLike[str], *, revision: str | None = None, **options: Any) -> None:
        """
        Args:
            model: "tiny" (the bundled checkpoint), a checkpoint folder, or a hub id.
            revision: branch, tag or commit, for a hub id.
            options: the fields of EngineConfig; `DEEPINFER_*` environment variables override them.
        Raises:
            ConfigError: an unknown or bad option or environment variable.
            CheckpointError: the model's files cannot be found or are not what its configuration asks for.
            UnsupportedError: an option that is known but not served yet.
        """
        with environ.blamed():
            config = EngineConfig.from_options(environ.merged(options))
            device = platforms.resolve(config.device)
            folder = model_source.locate(model, revision)
            self.model_config = ModelConfig.from_file(folder / "config.json")
            self.config = config.resolved(self.model_config, device)
            temperatures(self.config)  # what is wrong with a table is told before the weights are read
        self._tokenizer = Tokenizer.from_folder(folder, self.model_config.bos_token_id)
        self._engine = Engine(self.model_config, self.config, _load_worker(folder, self.config), self._tokenizer)
        self._seeds = SeedSource(config.seed)
        self._next_request = 0
        self._lock = threading.Lock()
        self._holder: int | None = None

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | list[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes prompts; one output each, in their order, always.

        Args:
            prompts: one prompt or a list of them. A prompt is a string, a list of token ids, {"prompt": "..."} or
                {"prompt_token_ids": [...]}. A list that starts with a number and holds no list or dict is one prompt.
            sampling_params: one for all, or a list of exactly as many as there are prompts. None: the defaults.
            use_tqdm: show a progress bar on stderr.
        Returns:
            A request that cannot be served (an empty or too long prompt, an id outside the vocabulary, …) has one
            completion with finish_reason "error" that says why; the others are not touched by it.
        Raises:
            RequestError: an argument is not of the shape above; nothing was generated.
        """
        items = prompt_list(prompts)
        params = params_list(sampling_params, len(items))
        if not isinstance(use_tqdm, bool):
            raise RequestError(f"use_tqdm: got {shown(use_tqdm)}; accepted: True or False")
        with (
            Progress(len(items), self._engine.statistics, enabled=use_tqdm) as progress,
            closing(self.stream(zip(items, params, strict=True), progress.step)) as outputs,
        ):
            return list(outputs)

    def stream(
        self, requests: Iterable[tuple[Any, SamplingParams]], on_step: Callable[[int], None] | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Like generate, for any number of requests in bounded memory: lazily taken, outputs yielded in order.

        Calls from other threads wait until the iterator is exhausted or closed.

        Args:
            requests: (prompt, parameters) pairs.
            on_step: called after each step with the number of requests that it completed.
        Raises:
            EngineError: this thread is inside a call already, so that waiting for it would never end.
            RequestError: an entry of `requests` is no such pair.
        """
        door = Door(self._engine.limits, self._tokenizer, self._seeds)
        with self._one_call():
            self._engine.forget_aborts()
            entries = (self._admit(door, *_pair(entry)) for entry in requests)
            with closing(run_in_order(self._engine, entries, self.config.max_num_seqs, on_step)) as outputs:
                yield from outputs

    @contextmanager
    def _one_call(self) -> Iterator[None]:
        """Holds the engine; calls of other threads wait."""
        if self._holder == threading.get_ident():
            raise EngineError(
                "this thread is inside a call of the same LLM: exhaust or close the iterator of `stream` first, and "
                "call neither generate nor stream from on_step or from the requests' iterator"
            )
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def _admit(self, door: Door, prompt: Any, params: SamplingParams) -> Request | Refusal:
        request_id = str(self._next_request)
        self._next_request += 1
        return door.admit(request_id, prompt, params)

    def abort(self, request_id: str) -> None:
        """Ends a request of the running call, from another thread or between the outputs of `stream`.

        Its output comes in its place, with what was generated until then and finish_reason "abort"; others are not
        touched. A request that has ended, or that no call holds, is left alone.

        Args:
            request_id: as outputs carry it: requests are numbered "0", "1", … over all calls of this object.
        Raises:
            RequestError: not the number of a request.
        """
        if not isinstance(request_id, str) or not request_id.isascii() or not request_id.isdigit():
            raise RequestError(
                f'request_id: got {shown(request_id)}; accepted: the number of a request as a string, "17"'
            )
        self._engine.abort(request_id)

    def skip_seeds(self, count: int) -> None:
        """Passes over the seeds of `count` requests without their own, so that a resumed run goes on as if unbroken."""
        for _ in range(count):
            self._seeds.draw()

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None if its folder has none."""
        return self._tokenizer

    @property
    def statistics(self) -> Statistics:
        """What the engine has done since it was made."""
        return self._engine.statistics


def _pair(entry: object) -> tuple[Any, SamplingParams]:
    """A prompt and its parameters."""
    if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[1], SamplingParams):
        raise RequestError(f"requests: got {shown(entry)}; accepted: (prompt, SamplingParams) pairs")
    return entry


def _load_worker(folder: Path, config: EngineConfig) -> Worker:
    """The worker that runs a model folder's weights."""
    from optimized.worker.worker import Worker as ModelWorker

    return ModelWorker(folder, config)
