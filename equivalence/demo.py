"""The demonstration: the engine writes text from the bundled model, then the reference computes every token again.

Knows the public surface of both voices; knows nothing about the checks. `python -m equivalence.demo --help`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from optimized import LLM, SamplingParams
from reference import tiny
from reference.checkpoint import load_checkpoint
from reference.generate import generate
from reference.model.transformer import ReferenceModel
from reference.spec import CompletionOutput

PROMPTS = ("And it came to pass", "And the king said unto", "hacker: n.", "The list object has a method")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m equivalence.demo", description="Write text twice and compare.")
    parser.add_argument("--prompt", action="append", help="a prompt; may be repeated (default: four short ones)")
    parser.add_argument("--max-tokens", type=int, default=32, help="new tokens per prompt (default: 32)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default: 0.7)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draws (default: 1)")
    return parser.parse_args(arguments)


def same(one: CompletionOutput, other: CompletionOutput) -> bool:
    """Whether ids, logprobs, text and the reason of the end are equal, bit for bit."""
    kept = ("token_ids", "logprobs", "cumulative_logprob", "text", "finish_reason", "stop_reason")
    return all(getattr(one, name) == getattr(other, name) for name in kept)


def main(arguments: Sequence[str]) -> int:
    """Print both voices' work; the exit status is 1 if they differ."""
    options = parse(arguments)
    prompts = options.prompt or list(PROMPTS)
    params = SamplingParams(
        temperature=options.temperature, max_tokens=options.max_tokens, seq_seed=options.seed, logprobs=3
    )
    say = sys.stdout.write
    engine = LLM("tiny")
    start = time.perf_counter()
    outputs = engine.generate(prompts, params, use_tqdm=False)
    took = time.perf_counter() - start
    for output in outputs:
        say(f"{output.prompt!r} -> {output.outputs[0].text!r}\n")
    count = sum(len(output.outputs[0].token_ids) for output in outputs)
    say(f"engine:    {count} tokens in one batch, {took:.2f} s, prefill included\n")
    sys.stdout.flush()

    folder = Path(tiny.__file__).parent
    checkpoint = load_checkpoint(folder)
    model = ReferenceModel(checkpoint.config, checkpoint.weights, checkpoint.token_map)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start = time.perf_counter()
    again = [generate(model, tokenizer, output.prompt_token_ids, params, 0) for output in outputs]
    took = time.perf_counter() - start
    say(f"reference: the same {count} tokens one by one, {took:.2f} s\n")
    differing = [i for i, (a, b) in enumerate(zip(outputs, again, strict=True)) if not same(a.outputs[0], b.outputs[0])]
    say(f"{len(outputs)} completions compared (ids, logprobs, text): {len(differing)} differ\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
