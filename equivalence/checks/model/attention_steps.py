"""Sub-steps of attention over the prompt's rows: stores, index scores, selections, core and output projection.

Knows which recorded tensors feed each and which one judges it; nothing carries over between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equivalence.checks.model import choices, released_core
from equivalence.checks.model.judge import Judge
from equivalence.checks.model.teacher import Rows, join
from reference.model import attention, compressor, indexer, rope
from reference.numerics import Numerics


class AttentionSteps(Judge):
    """The sub-steps of one attention sublayer, each a method that takes a layer."""

    def window_kv(self, layer: int) -> None:
        """Recorded streams give the window keys as stored."""
        teacher, x = self.teacher, self.teacher.attention_input(layer)
        versions = None
        if x is not None:
            weights, positions = teacher.layer_weights(layer).at("attn"), teacher.positions(x.start)

            def raw(numerics: Numerics) -> Tensor:
                inputs = self._input(layer, numerics)  # [R, D]
                frequencies = self._frequencies(layer)
                return attention.window_kv(inputs, positions, frequencies, weights, teacher.config, numerics)  # [R, d]

            versions = teacher.quantised(raw, teacher.numerics.window_kv)
        self.judge_quantised("window kv", f"L{layer}.window_kv", versions, 0 if x is None else x.start)

    def stores(self, layer: int) -> None:
        """Recorded streams give the latents; recorded latents give the compressed rows and the index keys."""
        teacher, config = self.teacher, self.teacher.config
        if not config.is_kv_source(layer) or teacher.row_count(layer) == 0:
            return
        ratio, count = config.compress_ratios[layer], teacher.row_count(layer)
        weights, frequencies = teacher.layer_weights(layer).at("attn"), self._frequencies(layer)
        x = teacher.attention_input(layer)
        got = None
        if x is not None:
            first = -(-x.start // ratio)
            whole = x.since(first * ratio)  # [R, D]
            values = compressor.latent(whole, ratio, weights.at("compressor"), config, teacher.numerics)  # [n, d]
            got = Rows(values, first)
        self.judge("latent", f"L{layer}.latent", got)
        recorded = teacher.recorded(f"L{layer}.latent", count)
        compressed = keys = None
        if recorded is not None and recorded.start == 0:
            latents, mine = recorded.values, weights.at("indexer")
            compressed = teacher.quantised(
                lambda numerics: compressor.store(latents, ratio, frequencies, numerics), teacher.numerics.compressed_kv
            )
            keys = teacher.quantised(
                lambda numerics: indexer.keys(latents, ratio, frequencies, mine, config, numerics),
                teacher.numerics.index_vector,
            )
        self.judge_quantised("compressed kv", f"L{layer}.compress_kv", compressed)
        self.judge_quantised("index keys", f"L{layer}.index_k", keys)

    def index(self, layer: int) -> None:
        """Recorded streams give index queries; recorded queries and keys give scores; recorded scores the selection."""
        teacher, config = self.teacher, self.teacher.config
        if not config.is_index_source(layer):
            return
        ratio, count = config.compress_ratios[layer], teacher.row_count(layer)
        weights = teacher.layer_weights(layer).at("attn.indexer")
        x = teacher.attention_input(layer)
        if count == 0:
            self._empty(f"L{layer}.topk_idxs")
            return
        versions = got = None
        if x is not None:
            seen = teacher.positions(x.start)  # [R]

            def raw(numerics: Numerics) -> Tensor:
                qr = self._qr(layer, self._input(layer, numerics), numerics)  # [R, q_lora]
                return indexer.queries(qr, seen, self._frequencies(layer), weights, config, numerics)  # [R, Hi, di]

            versions = teacher.quantised(raw, teacher.numerics.index_vector)
        self.judge_quantised("index queries", f"L{layer}.index_q", versions, 0 if x is None else x.start)
        queries = teacher.recorded(f"L{layer}.index_q")
        keys = teacher.recorded(f"L{config.kv_source(layer)}.index_k", count)
        if x is not None and queries is not None and keys is not None and keys.start == 0:
            start, (iq, inputs) = join(queries, x)
            a = indexer.head_weights(inputs, weights, config, teacher.numerics)  # [R, Hi]
            positions = teacher.positions(start)
            got = Rows(indexer.scores(iq, keys.values, a, positions, ratio, teacher.numerics), start)
        self.judge("index scores", f"L{layer}.index_score", got)
        self._selection(layer)

    def _selection(self, layer: int) -> None:
        teacher, config = self.teacher, self.teacher.config
        score = teacher.recorded(f"L{layer}.index_score")
        if score is None:
            self.findings.skip(f"prefill.L{layer}.topk_idxs", "the scores are not recorded")
            return
        values, positions = score.values, teacher.positions(score.start)  # [R, n]
        if layer == config.candidate_source_layer_id:
            self._candidates(layer, score)
        if config.uses_candidates(layer):
            allowed = teacher.recorded(f"L{config.candidate_source_layer_id}.candidate_mask")
            if allowed is None:
                self.findings.skip(f"prefill.L{layer}.topk_idxs", "the candidate mask is not recorded")
                return
            values = torch.where(allowed.since(score.start), values, -torch.inf)  # [R, n]
        want = teacher.recorded(f"L{layer}.topk_idxs")
        if want is None:
            self.findings.skip(f"prefill.L{layer}.topk_idxs", "not recorded")
            return
        got = indexer.top_rows(values, config.index_topk)  # [R, n]
        listed = indexer.row_list(got, want.values.shape[-1])  # [R, k]
        item = f"prefill.L{layer}.topk_idxs"
        if not choices.is_ascending(listed) or not choices.is_ascending(want.values):
            self.findings.differ(item, "choice", "rows are not listed in ascending order")
        theirs = choices.as_mask(want.since(score.start), got.shape[-1])  # [R, n]
        choices.sets(
            self.findings,
            "selection",
            item,
            choices.as_mask(listed, got.shape[-1]),
            theirs,
            values,
            self._margin(values),
        )
        hidden = torch.arange(got.shape[-1]) >= indexer.visible_rows(positions, config.compress_ratios[layer])[:, None]
        if bool((theirs & hidden).any()):
            self.findings.differ(item, "choice", "the recording selects a row that is not visible")

    def _candidates(self, layer: int, score: Rows) -> None:
        teacher, config = self.teacher, self.teacher.config
        name = f"L{layer}.candidate_mask"
        want = teacher.recorded(name)
        if want is None:
            self.findings.skip(f"prefill.{name}", "not recorded")
            return
        ratio, positions = config.compress_ratios[layer], teacher.positions(score.start)
        got = indexer.candidates(score.values, positions, ratio, config)  # [R, n]
        count = indexer.visible_rows(positions, ratio)  # [R]
        visible = torch.arange(got.shape[-1]) < count[:, None]  # [R, n]
        block = choices.block_scores(score.values, count, config.candidate_block_size)  # [R, n]
        theirs = want.since(score.start) & visible  # [R, n]
        margin = self._margin(block)
        choices.sets(self.findings, "candidates", f"prefill.{name}", got & visible, theirs, block, margin)

    def attention_core(self, layer: int) -> None:
        """Recorded keys, compressed rows and selection give the heads' output after inverse RoPE."""
        teacher, config = self.teacher, self.teacher.config
        name = f"L{layer}.attn_core"
        x, keys = teacher.attention_input(layer), teacher.recorded(f"L{layer}.window_kv")
        if x is None or keys is None:
            self.judge("attention core", name, None)
            return
        start = max(x.start, keys.start + config.sliding_window - 1 if keys.start else 0)
        if start >= teacher.length:
            self.findings.skip(f"prefill.{name}", "the recorded tail does not hold one whole window")
            return
        positions = teacher.positions(start)  # [R]
        listed = released_core.window_list(positions, config.sliding_window, min(teacher.length, config.sliding_window))
        listed = released_core.shifted(listed, -keys.start)  # [R, W]
        kv = keys.values  # [K, d]
        if config.compress_ratios[layer] and teacher.row_count(layer):
            extra = self._compressed(layer)
            if extra is None:
                self.judge("attention core", name, None)
                return
            listed = torch.cat((listed, released_core.shifted(extra[1][start:], kv.shape[0])), dim=-1)  # [R, W+k]
            kv = torch.cat((kv, extra[0]), dim=0)  # [K+n, d]
        weights = teacher.layer_weights(layer).at("attn")
        qr = self._qr(layer, x.since(start), teacher.numerics)  # [R, q_lora]
        q = attention.queries(qr, positions, self._frequencies(layer), weights, config, teacher.numerics)  # [R, H, d]
        visible = choices.as_mask(listed, kv.shape[0])  # [R, K+n]
        o = attention.core(q, kv, visible, weights["attn_sink"], teacher.numerics)  # [R, H, d]
        rows = ("model.official.core",) if self.bf16 else ()
        self.judge("attention core", name, Rows(self._unrotated(layer, o, positions), start), *rows)
        if self.bf16:
            o = released_core.core(q, kv, listed, weights["attn_sink"])  # [R, H, d]
            released = Rows(self._unrotated(layer, o, positions), start)
            self.judge("attention core, released order", name, released)

    def output_projection(self, layer: int) -> None:
        """Recorded core gives the attention output."""
        teacher, o = self.teacher, self.teacher.recorded(f"L{layer}.attn_core")
        got = None
        if o is not None:
            weights = teacher.layer_weights(layer).at("attn")
            got = Rows(attention.project(o.values, weights, teacher.config, teacher.numerics), o.start)
        self.judge("output projection", f"L{layer}.attn_out", got)

    def _frequencies(self, layer: int) -> Tensor:
        return self.teacher.model.frequencies[self.teacher.config.compress_ratios[layer]]

    def _input(self, layer: int, numerics: Numerics) -> Tensor:
        x = self.teacher.attention_input(layer, numerics)
        if x is None:
            raise ValueError(f"attention input of layer {layer} is not recorded")
        return x.values  # [R, D]

    def _qr(self, layer: int, x: Tensor, numerics: Numerics) -> Tensor:
        weights = self.teacher.layer_weights(layer).at("attn")
        return attention.query_latent(x, weights, self.teacher.config, numerics)  # [R, q_lora]

    def _unrotated(self, layer: int, o: Tensor, positions: Tensor) -> Tensor:
        frequencies = self._frequencies(layer)
        return rope.rotate(o, positions[:, None], frequencies, self.teacher.numerics, inverse=True)  # [R, H, d]

    def _empty(self, name: str) -> None:
        want = self.teacher.recorded(name)
        if want is not None and want.values.numel() and bool((want.values >= 0).any()):
            self.findings.differ(f"prefill.{name}", "choice", "rows are selected where no compressed row exists")

    def _margin(self, scores: Tensor) -> Tensor | float:
        return choices.bf16_step(scores) if self.bf16 else choices.float_margin()

    def _compressed(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Recorded compressed rows [n, d] and the row lists [S, k] that the layer reads."""
        teacher, config = self.teacher, self.teacher.config
        count = teacher.row_count(layer)
        rows = teacher.recorded(f"L{config.kv_source(layer)}.compress_kv", count)
        chosen = teacher.recorded(f"L{config.index_source(layer)}.topk_idxs")
        if rows is None or chosen is None or rows.start or chosen.start:
            return None
        return rows.values, chosen.values
