"""Runs the requests of a case in an engine of its own, with the step costs that the case gives.

A measured curve of step costs would make a case another one at every run, and takes longer than the case. Knows `LLM`
and where the engine measures; compares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from equivalence.generators import checkpoints
from equivalence.generators.batches import Request
from optimized import LLM, SamplingParams
from optimized.engine import step_cost
from reference.spec import RequestOutput

MAX_MODEL_LEN = 96


def engine(params: dict[str, Any], backend: str, **options: Any) -> LLM:
    """An engine of the case's model. params: "costs" of a case are (rows, duration) of its steps, the rows rising."""
    costs = [(rows, time) for rows, time in params.get("costs", ())]
    folder = str(checkpoints.of_case(params).folder)
    with mock.patch.object(step_cost, "measure", return_value=costs):
        return LLM(folder, device=backend, **{"max_model_len": MAX_MODEL_LEN, **options})


def generate(llm: LLM, requests: Sequence[Request]) -> list[RequestOutput]:
    """The outputs of some requests, in their order."""
    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    return llm.generate(prompts, [SamplingParams(**request["params"]) for request in requests], use_tqdm=False)
