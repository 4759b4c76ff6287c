"""What SamplingParams accepts, and how it refuses the rest: by type, by range, by name."""

import dataclasses
import pickle
from typing import Any

import pytest

from reference.spec import CounterpointError, RequestError, SamplingParams, UnsupportedError

pytestmark = pytest.mark.ci

REFUSED: list[tuple[str, Any]] = [
    *[("n", value) for value in (0, -1, True, 1.0, "1", None, 65537)],
    *[("temperature", value) for value in (-1, -1e-9, float("nan"), float("inf"), "1", None, True, 10**400)],
    *[("top_p", value) for value in (0, -0.1, 1.1, float("nan"), "1", None, True)],
    *[("top_k", value) for value in (-2, 1.5, True, 2**31, None)],
    *[("min_p", value) for value in (-0.1, 1.1, float("nan"), None, False)],
    *[("max_tokens", value) for value in (0, -1, 1.5, True, "16", 2**31)],
    *[("min_tokens", value) for value in (-1, True, None, 1.0, 17)],
    *[("stop", value) for value in ("", [""], [1], 3, ["a", None], b"a")],
    *[("stop_token_ids", value) for value in ([-1], [True], [1.5], 3, ["a"], [2**63])],
    *[("ignore_eos", value) for value in (1, None, "yes")],
    *[("seq_seed", value) for value in (-1, 2**64, 1.0, True)],
    *[("logprobs", value) for value in (-1, True, 1.5)],
    *[("prompt_logprobs", value) for value in (-1, False, 1.0)],
    *[("presence_penalty", value) for value in (2.1, -2.1, float("nan"), None, True, "1")],
    *[("frequency_penalty", value) for value in (2.1, -2.1, float("nan"), None, True, "1")],
    *[("repetition_penalty", value) for value in (0, -1, float("nan"), float("inf"), None, True)],
    *[("logit_bias", value) for value in ([1], {1: 101}, {1: float("nan")}, {1: "2"}, {1: True}, {"5": 1, 5: 2})],
    *[("logit_bias", {key: 1.0}) for key in (-1, True, 1.0, "a", "-1", "1.0", "", "٣", 2**31, "9" * 30)],
    *[("so_args", value) for value in ("json", {}, {"schema": "{}"}, {"schema_type": "json", "schema": "", "x": 1})],
    *[("so_args", {"schema_type": kind, "schema": "a"}) for kind in ("xml", None, 1, "choice")],
    *[("so_args", {"schema_type": kind, "schema": 1}) for kind in ("json", "regex", "ebnf", "choice")],
    *[("so_args", {"schema_type": "choice", "schema": schema}) for schema in ([], [1], [""])],
]


@pytest.mark.parametrize("name, value", REFUSED, ids=lambda item: item if isinstance(item, str) else None)
def test_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=rf"SamplingParams\.{name} = "):
        SamplingParams(**{name: value})


def test_number_too_long_to_print_is_still_refused_by_name() -> None:
    with pytest.raises(RequestError, match=r"SamplingParams\.temperature = an integer of 16610 bits"):
        SamplingParams(temperature=10**5000)


def test_neutral_values_are_the_defaults() -> None:
    neutral = SamplingParams(presence_penalty=0, frequency_penalty=-0.0, repetition_penalty=1, logit_bias={})
    assert neutral == SamplingParams()


def test_logit_bias_takes_the_string_keys_of_json_and_keeps_a_copy() -> None:
    given: dict[Any, float] = {"5": 1, 7: -100}
    params = SamplingParams(logit_bias=given)
    given[8] = 3.0
    assert params.logit_bias == {5: 1.0, 7: -100.0}
    assert hash(params) == hash(SamplingParams())
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    "typo, nearest", [("temprature", "temperature"), ("max_token", "max_tokens"), ("seed", "seq_seed")]
)
def test_unknown_name_points_at_the_nearest(typo: str, nearest: str) -> None:
    unknown: dict[str, Any] = {typo: 1}
    with pytest.raises(RequestError, match=f"no parameter '{typo}'; nearest is '{nearest}'"):
        SamplingParams(**unknown)


@pytest.mark.parametrize("unknown", ["best_of", "early_stopping", "use_beam_search", "response_format", "detokenize"])
def test_name_unlike_all_others_points_at_none(unknown: str) -> None:
    values: dict[str, Any] = {unknown: 1}
    with pytest.raises(RequestError, match=f"no parameter '{unknown}'$"):
        SamplingParams(**values)


def test_positional_values_are_refused() -> None:
    with pytest.raises(RequestError, match="keywords only"):
        SamplingParams(3)  # type: ignore[call-arg]


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.stop, params.stop_token_ids) == (16, 0, (), ())
    assert (params.ignore_eos, params.seq_seed, params.logprobs) == (False, None, None)


def test_values_are_normalised_and_frozen() -> None:
    params = SamplingParams(temperature=0, top_k=-1, stop="\n", stop_token_ids=[5], max_tokens=None, min_tokens=99)
    assert (params.temperature, params.top_k, params.stop, params.stop_token_ids) == (0.0, 0, ("\n",), (5,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, n=2).n == 2
    assert hash(params) != hash(dataclasses.replace(params, n=2))


def test_every_refusal_is_a_counterpoint_error() -> None:
    assert issubclass(RequestError, CounterpointError)
    assert issubclass(UnsupportedError, CounterpointError)
    assert issubclass(UnsupportedError, NotImplementedError)
    assert issubclass(RequestError, ValueError)
