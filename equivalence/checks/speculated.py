"""An engine for the requests of a case, with the step costs that the case gives.

A measured curve of step costs would make a case another one at every run, and takes longer than the case. Knows `LLM`
and where the engine measures; compares nothing.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from equivalence.generators import checkpoints
from optimized import LLM
from optimized.engine import step_cost

MAX_MODEL_LEN = 96


def engine(params: dict[str, Any], backend: str, **options: Any) -> LLM:
    """An engine of the case's model. params: "costs" of a case are (rows, duration) of its steps, the rows rising."""
    costs = [(rows, time) for rows, time in params.get("costs", ())]
    folder = str(checkpoints.of_case(params).folder)
    with mock.patch.object(step_cost, "measure", return_value=costs):
        return LLM(folder, device=backend, **{"max_model_len": MAX_MODEL_LEN, **options})
