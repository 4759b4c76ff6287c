"""Greedy generation with the reference writes the tokens that DeepSeek's own code wrote for the shipped packs."""

from __future__ import annotations

from pathlib import Path

import pytest

from equivalence import tensor_files
from reference.checkpoint import load_checkpoint
from reference.generate import generate
from reference.model.transformer import ReferenceModel
from reference.numerics import UNQUANTIZED, Numerics
from reference.spec import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
PACKS = {"c03_s129": ("official", Numerics()), "c11_dspark": ("fp32_noq", UNQUANTIZED)}


@pytest.mark.ci
@pytest.mark.parametrize("pack", PACKS)
def test_greedy_tokens_are_those_of_the_released_code(pack: str) -> None:
    mode, numerics = PACKS[pack]
    checkpoint = load_checkpoint(GOLDEN / pack)
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map, numerics)
    prompt = read(GOLDEN / pack / "inputs.safetensors", "input_ids")
    expected = read(GOLDEN / pack / f"expected_{mode}.safetensors", "greedy_ids")
    params = SamplingParams(temperature=0, max_tokens=len(expected), ignore_eos=True)
    assert generate(model, None, prompt, params, 0).outputs[0].token_ids == expected


def read(path: Path, name: str) -> list[int]:
    """One integer tensor of a file, flattened."""
    return tensor_files.load(path)[name].flatten().tolist()
