"""Golden packs as another correct program would record them: the reference in float32, in the released order.

For tests of the check `model`: packs of any shape that must pass, and that a planted error must turn red. They say
nothing about the model itself, since the reference wrote them. Knows the layout of packs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from equivalence import tensor_files
from equivalence.checks.model import released_core
from equivalence.checks.model.golden import NUMERICS
from reference.checkpoint import load_checkpoint
from reference.model import ReferenceModel, attention, draft
from reference.numerics import Numerics

DECODE_STEPS = 4

TAIL = 64

TAILED = re.compile(r"\.(h_\w+|attn_core|attn_comb|window_kv|index_q)$")
"""Tensors of which long prompts keep only the tail."""

_LEFT_OUT = re.compile(r"\.(attn_in|qr|q|index_weight|selected|chosen|engram_rows)$")

_KEPT_OF_DECODE = re.compile(r"(L\d+\.(h_ffn|topk_idxs|expert_ids)|engram_rows|hidden_final)")

_PER_GROUP = re.compile(r"\.(latent|compress_kv|index_k)$")


def write_pack(folder: Path, checkpoint: Path, prompt: list[int], modes: tuple[str, ...], tail_from: int = 257) -> Path:
    """Write a pack.

    Args: folder: made; checkpoint: a checkpoint folder; modes: which to record; tail_from: prompts this long keep only
    tails of large tensors.
    """
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(checkpoint / name, folder / name)
    loaded = load_checkpoint(folder)
    if loaded.token_map is not None:
        (folder / "engram_token_map.json").write_text(json.dumps(loaded.token_map.tolist()))
    tensor_files.save(folder / "inputs.safetensors", {"input_ids": torch.tensor(prompt)})
    for mode in modes:
        numerics = replace(NUMERICS[mode], compute_dtype=torch.float32)
        model = ReferenceModel(loaded.config, loaded.weights, loaded.token_map, numerics)
        with torch.no_grad():
            recorded = _record(model, torch.tensor(prompt), len(prompt) >= tail_from)
        tensor_files.save(folder / f"expected_{mode}.safetensors", recorded)
    return folder


def _record(model: ReferenceModel, prompt: Tensor, tails: bool) -> dict[str, Tensor]:
    length, tokens = prompt.shape[0], prompt
    for _ in range(DECODE_STEPS):
        with _released_order(model, length):
            newest = draft.greedy(model.forward(tokens)[-1:], 0)  # [1]
        tokens = torch.cat((tokens, newest))  # [S+i]
    greedy = tokens[length:]  # [G]
    trace: dict[str, Tensor] = {}
    with _released_order(model, length):
        logits = model.forward(tokens, trace=trace)  # [S+G, V]
    recorded = {"greedy_ids": greedy, "logits": logits[:length], "decode_logits": logits[length:]}
    for name, values in trace.items():
        if not _LEFT_OUT.search(name):
            recorded |= _rows(model, name, values, length, tails)
    if model.config.has_draft:
        recorded |= _drafts(model, trace["dspark_taps"], greedy, length)
    return {key: value.contiguous() for key, value in recorded.items()}


def _rows(model: ReferenceModel, name: str, values: Tensor, length: int, tails: bool) -> dict[str, Tensor]:
    values = _stored(name, values, model.numerics)
    key = f"prefill.{'main_hidden' if name == 'dspark_taps' else name}"
    if _PER_GROUP.search(name):
        ratio = model.config.compress_ratios[int(name[1:].split(".")[0])]
        return {key: values[: length // ratio]}
    prefill = values[:length]
    if name.endswith(("candidate_mask", "index_score", "topk_idxs")):
        ratio = model.config.compress_ratios[int(name[1:].split(".")[0])]
        width = length // ratio
        prefill = prefill[:, : min(width, model.config.index_topk) if name.endswith("topk_idxs") else width]
    if tails and TAILED.search(name):
        key, prefill = f"{key}.tail{TAIL}", prefill[-TAIL:]
    rows = {key: prefill}
    if _KEPT_OF_DECODE.fullmatch(name):
        rows |= {f"decode{i - length}.{name}": values[i : i + 1] for i in range(length, values.shape[0])}
    return rows


def _stored(name: str, values: Tensor, numerics: Numerics) -> Tensor:
    unrounded = name.endswith(("_pre", "_post", "_comb", "gate_biased", "expert_weights"))
    if not values.is_floating_point() or unrounded or not numerics.round_bf16:
        return values
    return values.to(torch.bfloat16)


def _drafts(model: ReferenceModel, taps: Tensor, greedy: Tensor, length: int) -> dict[str, Tensor]:
    anchors = torch.arange(greedy.shape[0]) + length - 1  # [G]
    if model.numerics.round_bf16:
        with released_core.drafting(model.config.sliding_window):
            drafted = draft.propose(model, taps, greedy, anchors)
    else:
        drafted = draft.propose(model, taps, greedy, anchors)
    ids = torch.cat((greedy[:, None], drafted.ids), dim=1)  # [G, B+1]
    return {"dspark.ids": ids, "dspark.logits": drafted.logits, "dspark.confidence": drafted.confidence}


@contextmanager
def _released_order(model: ReferenceModel, length: int) -> Iterator[None]:
    """Inside, attention of a bf16 mode runs in the released kernel's order: prompt rows, then single decode rows."""
    if not model.numerics.round_bf16:
        yield
        return
    window = model.config.sliding_window

    def listed_core(q: Tensor, kv: Tensor, visible: Tensor, sink: Tensor, numerics: Numerics) -> Tensor:
        parts = []
        for row in range(q.shape[0]):
            width = min(length, window) if row < length else window
            listed = released_core.window_list(torch.tensor([row]), window, width)[0]  # [width]
            chosen = visible[row, q.shape[0] :].nonzero().flatten() + q.shape[0]  # [k]
            listed = torch.cat((listed, chosen))[None]  # [1, width+k]
            parts.append(released_core.core(q[row : row + 1], kv, listed, sink))
        return torch.cat(parts)  # [T, H, d]

    with mock.patch.object(attention, "core", listed_core):
        yield
