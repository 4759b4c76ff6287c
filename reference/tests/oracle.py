"""The law of a draw, computed a second way: sorted lists and dictionaries in plain Python, from the words of the spec.

Shares no line with `reference.sampler`; knows nothing about noise. Source: serving specification §5.3, §5.5.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from reference.spec.sampling import SamplingParams


def law(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    banned: Collection[int] = (),
) -> dict[int, float]:
    """Probability of every token that can be drawn; of a greedy request, 1 for the lowest best."""
    z = {v: value + (params.logit_bias or {}).get(v, 0.0) for v, value in enumerate(logits)}
    for v in {*prompt, *output}:
        z[v] = z[v] / params.repetition_penalty if z[v] > 0 else z[v] * params.repetition_penalty
    for v in set(output):
        z[v] -= params.frequency_penalty * list(output).count(v)
        z[v] -= params.presence_penalty
    z = {v: value for v, value in z.items() if v not in banned and value != -math.inf}
    order = sorted(z, key=lambda v: (-z[v], v))
    if params.temperature < 1e-5:
        return {order[0]: 1.0}
    weight = {v: math.exp((z[v] - z[order[0]]) / params.temperature) for v in order}
    kept = order[: params.top_k] if params.top_k else order
    total, mass, nucleus = math.fsum(weight[v] for v in kept), 0.0, []
    for v in kept:
        if params.top_p == 1.0 or mass / total < params.top_p:
            nucleus.append(v)
        mass += weight[v]
    final = [v for v in nucleus if weight[v] >= params.min_p * weight[order[0]]]
    total = math.fsum(weight[v] for v in final)
    return {v: weight[v] / total for v in final}
