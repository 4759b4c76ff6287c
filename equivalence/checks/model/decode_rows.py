"""The decode rows of a pack, layer by layer: each layer reads the recorded streams of the layer before.

Packs keep only streams, selections and experts of a decode step, so a whole layer is one sub-step here; the rows of the
prompt that it attends to are the recorded ones. Knows the reference's pieces and the keys of a recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from equivalence.checks.model import choices, released_core
from equivalence.checks.model.evidence import Evidence
from equivalence.checks.model.teacher import Teacher
from reference.model import attention, compressor, engram, hyper_connections, indexer, moe, norm, rope


class MissingTensorError(Exception):
    """A recorded tensor that a layer needs is absent; the message names it."""


@dataclass
class Shared:
    """What source layers leave for the layers after them.

    compressed [n, d], keys [n, d_index] of the prompt and the decode rows; candidates: bool [G, n] and the
    block_scores [G, n] that made them.
    """

    compressed: Tensor = field(default_factory=lambda: torch.empty(0))
    keys: Tensor = field(default_factory=lambda: torch.empty(0))
    candidates: Tensor = field(default_factory=lambda: torch.empty(0))
    block_scores: Tensor = field(default_factory=lambda: torch.empty(0))


def compare(teacher: Teacher, evidence: Evidence) -> None:
    """All decode rows of one mode, then their logits and tokens."""
    findings = evidence.findings
    if teacher.greedy is None:
        findings.skip("decode rows", "greedy_ids is not recorded")
        return
    rows = DecodeRows(teacher, evidence, teacher.greedy)
    rows.engram_rows()
    try:
        for layer in range(teacher.config.num_hidden_layers):
            rows.layer(layer)
        rows.final_norm()
    except MissingTensorError as error:
        findings.skip("decode rows of the layers", str(error))
    rows.head()


class DecodeRows:
    """G decode rows, one a recorded greedy token, carried from layer to layer by the recording."""

    def __init__(self, teacher: Teacher, evidence: Evidence, greedy: Tensor) -> None:
        self.teacher = teacher
        self.evidence = evidence
        self.findings = evidence.findings
        self.greedy = greedy
        self.positions = torch.arange(greedy.shape[0]) + teacher.length  # [G]
        self.pre = hyper_connections.initial_pre(teacher.model.embed(greedy))  # [G, C]
        self.shared = Shared()

    def engram_rows(self) -> None:
        """Hash of the token ids, prompt history included."""
        config = self.teacher.config
        if not config.engram_layer_ids:
            return
        want = self.teacher.decoded("engram_rows")
        if want is None:
            self.findings.skip("decode*.engram_rows", "not recorded in every step")
            return
        tokens = torch.cat((self.teacher.prompt, self.greedy))  # [S+G]
        hashed = [self.teacher.model.engram_rows(tokens, layer) for layer in config.engram_layer_ids]
        got = torch.stack(hashed, dim=-2)[self.teacher.length :]  # [G, layers, columns]
        self.findings.values("decode engram rows", "decode*.engram_rows", got, want)

    def entering(self, layer: int) -> Tensor:
        """Streams [G, C, D] that the layer's first mix reads, from the recorded layer before."""
        teacher = self.teacher
        h = teacher.model.embed(self.greedy) if layer == 0 else self._decoded(f"L{layer - 1}.h_ffn")  # [G, C, D]
        if layer in teacher.config.engram_layer_ids:
            place = teacher.config.engram_layer_ids.index(layer)
            rows = self._decoded("engram_rows")[:, place]  # [G, columns]
            weights = teacher.layer_weights(layer).at("engram")
            h = engram.add(h, rows, weights, teacher.config, teacher.numerics)  # [G, C, D]
        return h

    def layer(self, layer: int) -> None:
        """One whole layer on the recorded streams before it."""
        teacher, config, numerics = self.teacher, self.teacher.config, self.teacher.numerics
        weights = teacher.layer_weights(layer)
        h = self.entering(layer)  # [G, C, D]
        mixed = self._mix(layer, "attn", h)
        u = hyper_connections.collapse(h, self.pre, numerics)  # [G, D]
        x = norm.rms_norm(u, weights["attn_norm"], config.rms_norm_eps, numerics)  # [G, D]
        y = self._attend(layer, x)  # [G, D]
        h = hyper_connections.expand(y, h, mixed.post, mixed.comb, numerics)  # [G, C, D]
        mixed_ffn = self._mix(layer, "ffn", h)
        u = hyper_connections.collapse(h, mixed.pre, numerics)  # [G, D]
        x = norm.rms_norm(u, weights["ffn_norm"], config.rms_norm_eps, numerics)  # [G, D]
        routing = moe.route(x, config.num_experts_per_tok, weights.at("ffn.gate"), config)
        same = self._experts(layer, routing)  # [G]
        y = moe.moe(x, routing, weights.at("ffn"), config, numerics)  # [G, D]
        h = hyper_connections.expand(y, h, mixed_ffn.post, mixed_ffn.comb, numerics)  # [G, C, D]
        want = self._decoded(f"L{layer}.h_ffn")  # [G, C, D]
        self.evidence.values("decode layer", f"decode*.L{layer}.h_ffn", h, want, self.evidence.layer_rows, keep=same)
        self.pre = mixed_ffn.pre  # [G, C]

    def final_norm(self) -> None:
        """Recorded last streams give the normalised final rows."""
        teacher = self.teacher
        h = self._decoded(f"L{teacher.config.num_hidden_layers - 1}.h_ffn")  # [G, C, D]
        x = hyper_connections.collapse(h, self.pre, teacher.numerics)  # [G, D]
        z = norm.rms_norm(x, teacher.model.weights["norm"], teacher.config.rms_norm_eps, teacher.numerics)  # [G, D]
        want = self._decoded("hidden_final")
        self.evidence.values("decode final norm", "decode*.hidden_final", z, want, self.evidence.layer_rows)

    def head(self) -> None:
        """Recorded final rows give the logits; they give the next greedy token."""
        z, logits = self.teacher.decoded("hidden_final"), self.teacher.recording.whole("decode_logits")
        if z is None or logits is None:
            self.findings.skip("decode_logits", "it or decode*.hidden_final is not recorded")
            return
        got = self.teacher.model.logits(z)  # [G, V]
        self.findings.values("decode logits", "decode_logits", got, logits.to(got.dtype), "model.logits_from_hidden")
        choices.tokens(self.findings, "greedy_ids[1:]", got[:-1], self.greedy[1:], choices.float_margin())

    # ---- attention of one layer ----

    def _attend(self, layer: int, x: Tensor) -> Tensor:
        teacher, config, numerics = self.teacher, self.teacher.config, self.teacher.numerics
        ratio = config.compress_ratios[layer]
        frequencies = teacher.model.frequencies[ratio]
        weights = teacher.layer_weights(layer).at("attn")
        qr = attention.query_latent(x, weights, config, numerics)  # [G, q_lora]
        q = attention.queries(qr, self.positions, frequencies, weights, config, numerics)  # [G, H, d]
        mine = attention.window_kv(x, self.positions, frequencies, weights, config, numerics)  # [G, d]
        kv, first = self._window(layer, mine)  # [K, d]
        listed = released_core.window_list(self.positions, config.sliding_window, config.sliding_window)  # [G, W]
        listed = released_core.shifted(listed, -first)  # [G, W]
        if config.is_kv_source(layer):
            self._store(layer, x)
        if config.is_index_source(layer):
            self._select(layer, x, qr)
        if ratio:
            selected = released_core.shifted(self._decoded(f"L{config.index_source(layer)}.topk_idxs"), kv.shape[0])
            listed = torch.cat((listed, selected), dim=-1)  # [G, W+k]
            kv = torch.cat((kv, self.shared.compressed), dim=0)  # [K+n, d]
        o = self._core(layer, q, kv, listed, weights["attn_sink"])  # [G, H, d]
        o = rope.rotate(o, self.positions[:, None], frequencies, numerics, inverse=True)  # [G, H, d]
        return attention.project(o, weights, config, numerics)  # [G, D]

    def _core(self, layer: int, q: Tensor, kv: Tensor, listed: Tensor, sink: Tensor) -> Tensor:
        numerics = self.teacher.numerics
        visible = choices.as_mask(listed, kv.shape[0])  # [G, K+n]
        mine = attention.core(q, kv, visible, sink, numerics)  # [G, H, d]
        if not numerics.round_bf16:
            return mine
        released = released_core.core(q, kv, listed, sink)  # [G, H, d]
        self.findings.values("decode core", f"decode*.L{layer} core", mine, released, "model.official.core")
        return released

    def _window(self, layer: int, mine: Tensor) -> tuple[Tensor, int]:
        teacher = self.teacher
        recorded = teacher.recorded(f"L{layer}.window_kv")
        oldest = max(0, teacher.length - teacher.config.sliding_window + 1)
        if recorded is None or recorded.start > oldest:
            raise MissingTensorError(f"prefill.L{layer}.window_kv does not hold the window of the first decode row")
        return torch.cat((recorded.values, mine), dim=0), recorded.start

    def _store(self, layer: int, x: Tensor) -> None:
        teacher, config, numerics = self.teacher, self.teacher.config, self.teacher.numerics
        ratio, count = config.compress_ratios[layer], teacher.row_count(layer)
        frequencies, weights = teacher.model.frequencies[ratio], teacher.layer_weights(layer).at("attn")
        before = teacher.attention_input(layer)
        if before is None or before.start > count * ratio:
            raise MissingTensorError(f"the open group of layer {layer} at the end of the prompt")
        inputs = torch.cat((before.since(count * ratio), x), dim=0)  # [open+G, D]
        latents = compressor.latent(inputs, ratio, weights.at("compressor"), config, numerics)  # [new, d]
        if count:
            latents = torch.cat((self._whole(f"L{layer}.latent", count), latents), dim=0)  # [n, d]
        compressed = compressor.store(latents, ratio, frequencies, numerics)  # [n, d]
        keys = indexer.keys(latents, ratio, frequencies, weights.at("indexer"), config, numerics)  # [n, d_index]
        if count:
            compressed = torch.cat((self._whole(f"L{layer}.compress_kv", count), compressed[count:]), dim=0)
            keys = torch.cat((self._whole(f"L{layer}.index_k", count), keys[count:]), dim=0)  # [n, d_index]
        self.shared.compressed, self.shared.keys = compressed, keys

    def _select(self, layer: int, x: Tensor, qr: Tensor) -> None:
        teacher, config, numerics = self.teacher, self.teacher.config, self.teacher.numerics
        ratio = config.compress_ratios[layer]
        weights = teacher.layer_weights(layer).at("attn.indexer")
        iq = indexer.queries(qr, self.positions, teacher.model.frequencies[ratio], weights, config, numerics)
        a = indexer.head_weights(x, weights, config, numerics)  # [G, Hi]
        score = indexer.scores(iq, self.shared.keys, a, self.positions, ratio, numerics)  # [G, n]
        if layer == config.candidate_source_layer_id:
            self.shared.candidates = indexer.candidates(score, self.positions, ratio, config)  # [G, n]
            seen = indexer.visible_rows(self.positions, ratio)  # [G]
            self.shared.block_scores = choices.block_scores(score, seen, config.candidate_block_size)  # [G, n]
        want = choices.as_mask(self._decoded(f"L{layer}.topk_idxs"), score.shape[-1])  # [G, n]
        margin = choices.bf16_step(score) if numerics.round_bf16 else choices.float_margin()
        place = (self.findings, "decode selection", f"decode*.L{layer}.topk_idxs")
        if config.uses_candidates(layer):
            allowed = torch.where(self.shared.candidates, score, -torch.inf)  # [G, n]
            selected = indexer.top_rows(allowed, config.index_topk)  # [G, n]
            shared = self.shared
            selected = self.evidence.choice(*place[1:], selected, want)  # [G, n]
            choices.from_candidates(*place, selected, want, score, shared.candidates, shared.block_scores, margin)
        else:
            selected = self.evidence.choice(*place[1:], indexer.top_rows(score, config.index_topk), want)  # [G, n]
            choices.sets(*place, selected, want, score, margin)

    def _experts(self, layer: int, routing: moe.Routing) -> Tensor:
        want = choices.as_mask(self._decoded(f"L{layer}.expert_ids"), routing.chosen.shape[-1])  # [G, E]
        bf16 = self.teacher.numerics.round_bf16
        margin = choices.bf16_step(routing.biased) if bf16 else choices.float_margin()
        item = f"decode*.L{layer}.expert_ids"
        chosen = self.evidence.choice("decode experts", item, routing.chosen, want)  # [G, E]
        choices.sets(self.findings, "decode experts", item, chosen, want, routing.biased, margin)
        return (routing.chosen == want).all(dim=-1)  # [G]

    def _mix(self, layer: int, sublayer: str, h: Tensor) -> hyper_connections.Mixing:
        weights = self.teacher.layer_weights(layer)
        fn, scale, base = (weights[f"hc_{sublayer}_{part}"] for part in ("fn", "scale", "base"))
        return hyper_connections.mix(h, fn, scale, base, self.teacher.config)

    def _whole(self, name: str, count: int) -> Tensor:
        found = self.teacher.recorded(name, count)
        if found is None or found.start:
            raise MissingTensorError(f"prefill.{name} is not whole")
        return found.values

    def _decoded(self, name: str) -> Tensor:
        found = self.teacher.decoded(name)
        if found is None:
            raise MissingTensorError(f"decode*.{name} is not recorded in every step")
        return found
