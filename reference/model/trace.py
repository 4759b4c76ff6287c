"""Named intermediates of a forward pass, under the names of the golden packs; knows names, computes no layer.

Per layer i: ``L<i>.`` + engram_rows, h_engram, attn_in, qr, q, window_kv, latent, index_k, compress_kv, index_q,
index_weight, index_score, candidate_mask, selected, topk_idxs, attn_core, attn_out, attn_pre, attn_post, attn_comb,
h_attn, gate_biased, chosen, expert_ids, expert_weights, ffn_out, ffn_pre, h_ffn.
Once: engram_rows, dspark_taps, hidden_final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference.model import indexer

if TYPE_CHECKING:
    from reference.model.hyper_connections import Mixing
    from reference.model.moe import Routing


class Trace:
    """Writes into the dictionary it was given, or nowhere."""

    def __init__(self, notes: dict[str, Tensor] | None) -> None:
        self._notes = notes

    def note(self, name: str, value: Tensor) -> None:
        """Record one tensor."""
        if self._notes is not None:
            self._notes[name] = value

    def engram(self, layer: int, rows: Tensor, h: Tensor) -> None:
        """rows int64 [..., T, columns], also stacked over layers as ``engram_rows`` [..., T, layers, columns]."""
        if self._notes is None:
            return
        self.note(f"L{layer}.engram_rows", rows)
        earlier = self._notes.get("engram_rows")
        stacked = rows[..., None, :] if earlier is None else torch.cat((earlier, rows[..., None, :]), dim=-2)
        self.note("engram_rows", stacked)
        self.note(f"L{layer}.h_engram", h)

    def queries(self, layer: int, qr: Tensor, q: Tensor, window_kv: Tensor) -> None:
        """qr [..., T, q_lora]; q [..., T, H, d]; window_kv [..., T, d]."""
        self.note(f"L{layer}.qr", qr)
        self.note(f"L{layer}.q", q)
        self.note(f"L{layer}.window_kv", window_kv)

    def store(self, layer: int, latent: Tensor, index_k: Tensor, compress_kv: Tensor) -> None:
        """latent, compress_kv [..., n, d]; index_k [..., n, d_index]."""
        self.note(f"L{layer}.latent", latent)
        self.note(f"L{layer}.index_k", index_k)
        self.note(f"L{layer}.compress_kv", compress_kv)

    def scores(self, layer: int, index_q: Tensor, index_weight: Tensor, index_score: Tensor) -> None:
        """index_q [..., T, Hi, di]; index_weight [..., T, Hi]; index_score [..., T, n], -inf where invisible."""
        self.note(f"L{layer}.index_q", index_q)
        self.note(f"L{layer}.index_weight", index_weight)
        self.note(f"L{layer}.index_score", index_score)

    def selection(self, layer: int, selected: Tensor, topk: int) -> None:
        """selected bool [..., T, n]; also as ``topk_idxs`` int32 [..., T, min(topk, n)], -1 = none."""
        if self._notes is None:
            return
        self.note(f"L{layer}.selected", selected)
        self.note(f"L{layer}.topk_idxs", indexer.row_list(selected, min(topk, selected.shape[-1])))

    def attention(self, layer: int, mix: Mixing, x: Tensor, y: Tensor, h: Tensor) -> None:
        """x, y [..., T, D] input and output of the sublayer; h [..., T, C, D] streams after it."""
        self.note(f"L{layer}.attn_in", x)
        self.note(f"L{layer}.attn_out", y)
        self.note(f"L{layer}.attn_pre", mix.pre)
        self.note(f"L{layer}.attn_post", mix.post)
        self.note(f"L{layer}.attn_comb", mix.comb)
        self.note(f"L{layer}.h_attn", h)

    def ffn(self, layer: int, mix: Mixing, routing: Routing, per_token: int, y: Tensor, h: Tensor) -> None:
        """y [..., T, D]; h [..., T, C, D]; expert ids ascending with their weights, [..., T, k]."""
        if self._notes is None:
            return
        ids = indexer.row_list(routing.chosen, per_token).long()  # [..., T, k]
        self.note(f"L{layer}.gate_biased", routing.biased)
        self.note(f"L{layer}.chosen", routing.chosen)
        self.note(f"L{layer}.expert_ids", ids)
        self.note(f"L{layer}.expert_weights", routing.weight.gather(-1, ids))
        self.note(f"L{layer}.ffn_out", y)
        self.note(f"L{layer}.ffn_pre", mix.pre)
        self.note(f"L{layer}.h_ffn", h)
