"""Mode `fp32_noq`: one forward pass over the prompt and the recorded tokens against everything that was recorded.

Knows how the keys of a recording correspond to the reference's named intermediates, and which of them are choices.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from equivalence.checks.model import choices, draft_rows
from equivalence.findings import Findings
from equivalence.packs import Recording
from reference.model import ReferenceModel, indexer

VALUES = "model.fp32_noq.values"

_KEY = re.compile(r"(?:prefill|decode(\d+))\.(?:L(\d+)\.)?([a-z_]+?)(?:\.tail(\d+))?")

_PER_COMPRESSED_ROW = {"latent", "compress_kv", "index_k"}

_RENAMED = {"main_hidden": "dspark_taps"}


def compare(model: ReferenceModel, prompt: Tensor, recording: Recording, findings: Findings) -> None:
    """Logits within 1e-4 and every discrete choice equal, prompt rows, decode rows and draft rows."""
    greedy = recording.whole("greedy_ids")
    greedy = prompt.new_empty(0) if greedy is None else greedy.long()  # [G]
    trace: dict[str, Tensor] = {}
    logits = model.forward(torch.cat((prompt, greedy)), trace=trace)  # [S+G, V]
    comparison = EndToEnd(model, prompt.shape[0], greedy.shape[0], recording, findings, trace)
    comparison.logits(logits)
    comparison.tokens(logits, greedy)
    for key in sorted(recording.unused()):
        comparison.intermediate(key)
    if model.config.has_draft and greedy.shape[0]:
        row = "model.fp32_noq.logits"
        draft_rows.judge(model, trace["dspark_taps"], greedy, prompt.shape[0], recording, findings, row)


class EndToEnd:
    """One pass against one recording.

    length: S; fed: G, tokens fed after the prompt; trace: the reference's intermediates over S+G rows.
    """

    def __init__(
        self,
        model: ReferenceModel,
        length: int,
        fed: int,
        recording: Recording,
        findings: Findings,
        trace: dict[str, Tensor],
    ) -> None:
        self.model = model
        self.length = length
        self.recording = recording
        self.findings = findings
        self.trace = trace
        self.fed = fed

    def logits(self, got: Tensor) -> None:
        """Prompt rows and decode rows: [S+G, V]."""
        for key, mine in (("logits", got[: self.length]), ("decode_logits", got[self.length :])):
            want = self.recording.rows(key, mine.shape[0])
            if want is None:
                self.findings.skip(key, "not recorded")
                continue
            values, start = want
            self.findings.values(key, key, mine[start:], values.to(got.dtype), "model.fp32_noq.logits")

    def tokens(self, logits: Tensor, greedy: Tensor) -> None:
        """Each recorded token is the argmax of the row before it."""
        if not greedy.shape[0]:
            self.findings.skip("greedy_ids", "not recorded")
            return
        choices.tokens(self.findings, "greedy_ids", logits[self.length - 1 : -1], greedy)

    def intermediate(self, key: str) -> None:
        """One recorded intermediate, whatever its name; unknown names stay unused and are listed."""
        match = _KEY.fullmatch(key)
        if match is None:
            return
        step, layer, leaf, tail = match.groups()
        name = _RENAMED.get(leaf, leaf) if layer is None else f"L{layer}.{leaf}"
        if name not in self.trace or (step is not None and leaf in _PER_COMPRESSED_ROW):
            return
        if step is not None and int(step) >= self.fed:
            self.findings.skip(key, f"greedy_ids holds {self.fed} tokens")
            self.recording.whole(key)
            return
        want = self.recording.whole(key)
        if want is None:
            return
        rows = self._rows(step, layer, leaf, tail)
        got = self.trace[name][rows]
        if leaf == "topk_idxs":
            self._selection(key, int(layer), rows, want)
        elif leaf == "candidate_mask":
            self._candidates(key, int(layer), rows, want)
        elif leaf == "expert_ids":
            self._sets("experts", key, got, want, self.model.config.n_routed_experts)
        elif leaf == "expert_weights":
            self._expert_weights(key, got, want)
        elif leaf == "index_score":
            self._values(key, leaf, got[..., : want.shape[-1]], want)
        else:
            self._values(key, leaf, got, want)

    def _rows(self, step: str | None, layer: str | None, leaf: str, tail: str | None) -> slice:
        if step is not None:
            row = self.length + int(step)
            return slice(row, row + 1)
        count = self.length
        if leaf in _PER_COMPRESSED_ROW and layer is not None:
            count //= self.model.config.compress_ratios[int(layer)]
        return slice(count - int(tail) if tail else 0, count)

    def _values(self, key: str, leaf: str, got: Tensor, want: Tensor) -> None:
        if want.is_floating_point():
            self.findings.values(leaf, key, got, want.to(got.dtype), VALUES)
        else:
            self.findings.values(leaf, key, got, want)

    def _sets(self, sub_step: str, key: str, got: Tensor, want: Tensor, width: int) -> None:
        choices.sets(self.findings, sub_step, key, choices.as_mask(got, width), choices.as_mask(want, width))

    def _selection(self, key: str, layer: int, rows: slice, want: Tensor) -> None:
        got = self.trace[f"L{layer}.topk_idxs"][rows]  # [R, k]
        if not choices.is_ascending(want) or not choices.is_ascending(got):
            self.findings.differ(key, "choice", "rows are not listed in ascending order")
        self._sets("selection", key, got, want, self.trace[f"L{layer}.selected"].shape[-1])

    def _candidates(self, key: str, layer: int, rows: slice, want: Tensor) -> None:
        got = self.trace[f"L{layer}.candidate_mask"][rows][..., : want.shape[-1]]  # [R, n]
        positions = torch.arange(self.length + 1 + rows.stop)[rows]  # [R]
        ratio = self.model.config.compress_ratios[layer]
        visible = torch.arange(want.shape[-1]) < indexer.visible_rows(positions, ratio)[:, None]  # [R, n]
        self.findings.values("candidates", key, got & visible, want & visible)

    def _expert_weights(self, key: str, got: Tensor, want: Tensor) -> None:
        ids = self.recording.whole(key.replace("expert_weights", "expert_ids"))
        if ids is None or ids.shape != want.shape:
            self.findings.skip(key, "the experts that they belong to are not recorded")
            return
        by_id = want.gather(-1, ids.argsort(dim=-1))  # [R, k]
        self._values(key, "expert_weights", got, by_id)
