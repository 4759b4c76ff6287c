"""A bad value whose repr raises is still told by a typed error, and touches no neighbour."""

from __future__ import annotations

from typing import Any

import pytest

from optimized.config import EngineConfig
from optimized.engine.door import Door, Limits, Refusal
from optimized.engine.seeds import SeedSource
from optimized.model_source import locate
from reference.spec.errors import CheckpointError, ConfigError
from reference.spec.sampling import SamplingParams

pytestmark = pytest.mark.ci


class NoRepr:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


def nested(depth: int) -> list[Any]:
    """Lists in lists, deeper than repr goes."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


BAD = (10**5000, [10**5000], nested(100_000), NoRepr(), [NoRepr()])


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_prompt_that_cannot_be_shown_is_refused(number: int) -> None:
    value = BAD[number]
    door = Door(Limits(10, 10, lambda length, tokens: ""), None, SeedSource(0))
    for prompt in (value, [value], {"prompt": value}, {"prompt_token_ids": value}, {"prompt_token_ids": [value]}):
        assert isinstance(door.admit("0", prompt, SamplingParams()), Refusal)


def test_a_key_that_cannot_be_shown_is_refused() -> None:
    door = Door(Limits(10, 10, lambda length, tokens: ""), None, SeedSource(0))
    for key in (NoRepr(), 10**5000):
        assert isinstance(door.admit("0", {key: 1}, SamplingParams()), Refusal)


@pytest.mark.parametrize("name", ["max_num_seqs", "num_pages", "seed", "device", "gpu_memory_utilization"])
@pytest.mark.parametrize("number", range(len(BAD)))
def test_an_option_that_cannot_be_shown_is_refused(name: str, number: int) -> None:
    with pytest.raises(ConfigError, match=name):
        EngineConfig.from_options({name: BAD[number]})


@pytest.mark.parametrize("name", ["a" * 5000, "~no-such-user/x", "a\0b"])
def test_a_name_that_no_folder_can_have_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="model"):
        locate(name)
