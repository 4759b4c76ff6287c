"""Sub-steps of the residual streams of the prompt's rows: Engram, mixes, expands, experts, taps, final norm and head.

Knows which recorded tensors feed each and which one judges it; nothing carries over between them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equivalence.checks.model import choices
from equivalence.checks.model.judge import Judge
from equivalence.checks.model.teacher import Rows, join
from reference.model import draft, engram, hyper_connections, moe, norm


class StreamSteps(Judge):
    """The sub-steps around the streams, each a method that takes a layer."""

    def engram_rows(self) -> None:
        """Hash of the token ids."""
        config = self.teacher.config
        if not config.engram_layer_ids:
            return
        rows = [self.teacher.model.engram_rows(self.teacher.prompt, layer) for layer in config.engram_layer_ids]
        self.judge("engram rows", "engram_rows", Rows(torch.stack(rows, dim=-2), 0), "exact")

    def engram(self, layer: int) -> None:
        """Recorded rows and incoming streams give the streams after Engram."""
        teacher = self.teacher
        if layer not in teacher.config.engram_layer_ids:
            return
        place = teacher.config.engram_layer_ids.index(layer)
        h, rows = teacher.incoming(layer), teacher.recorded("engram_rows")
        got = None
        if h is not None and rows is not None:
            start, (streams, ids) = join(h, rows)  # [R, C, D], [R, layers, columns]
            weights = teacher.layer_weights(layer).at("engram")
            got = Rows(engram.add(streams, ids[:, place], weights, teacher.config, teacher.numerics), start)
        self.judge("engram", f"L{layer}.h_engram", got)

    def mixing(self, layer: int) -> None:
        """Recorded streams give both mixes."""
        teacher = self.teacher
        for sublayer, h in (("attn", teacher.entering(layer)), ("ffn", teacher.recorded(f"L{layer}.h_attn"))):
            mixed = None if h is None else self._mix(layer, sublayer, h.values)
            names = ("pre", "post", "comb") if sublayer == "attn" else ("pre",)
            for name in names:
                got = None if mixed is None or h is None else Rows(getattr(mixed, name), h.start)
                self.judge(f"mix {name}", f"L{layer}.{sublayer}_{name}", got, "model.mix")

    def attention_expand(self, layer: int) -> None:
        """Recorded attention output, streams and mixes give the streams after attention."""
        teacher = self.teacher
        inputs = (
            teacher.recorded(f"L{layer}.attn_out"),
            teacher.entering(layer),
            teacher.recorded(f"L{layer}.attn_post"),
            teacher.recorded(f"L{layer}.attn_comb"),
        )
        present = [each for each in inputs if each is not None]
        got = None
        if len(present) == len(inputs):
            start, (y, h, post, comb) = join(*present)
            got = Rows(hyper_connections.expand(y, h, post, comb, teacher.numerics), start)
        self.judge("expand attention", f"L{layer}.h_attn", got)

    def routing(self, layer: int) -> None:
        """Recorded streams give biased scores, experts and their weights."""
        teacher, config = self.teacher, self.teacher.config
        x = teacher.ffn_input(layer)
        if x is None:
            for name in ("gate_biased", "expert_ids", "expert_weights"):
                self.judge("routing", f"L{layer}.{name}", None)
            return
        routing = moe.route(x.values, config.num_experts_per_tok, teacher.layer_weights(layer).at("ffn.gate"), config)
        self.judge("gate", f"L{layer}.gate_biased", Rows(routing.biased, x.start))
        ids = teacher.recorded(f"L{layer}.expert_ids")
        if ids is None:
            self.findings.skip(f"prefill.L{layer}.expert_ids", "not recorded")
            return
        theirs = choices.as_mask(ids.since(x.start), config.n_routed_experts)  # [R, E]
        recorded = teacher.recorded(f"L{layer}.gate_biased")
        scores = routing.biased if recorded is None else recorded.since(x.start)  # [R, E]
        item = f"prefill.L{layer}.expert_ids"
        margin = choices.bf16_step(scores) if self.bf16 else choices.float_margin()
        choices.sets(self.findings, "experts", item, routing.chosen, theirs, scores, margin)
        weights = teacher.recorded(f"L{layer}.expert_weights")
        if weights is None:
            self.findings.skip(f"prefill.L{layer}.expert_weights", "not recorded")
            return
        spread = torch.zeros_like(routing.weight).scatter_(-1, ids.since(x.start), weights.since(x.start))  # [R, E]
        same = (routing.chosen == theirs).all(dim=-1)  # [R]
        item = f"prefill.L{layer}.expert_weights"
        self.evidence.values("expert weights", item, routing.weight, spread, keep=same)

    def experts(self, layer: int) -> None:
        """Recorded streams, ids and weights give the output of the experts."""
        teacher, config = self.teacher, self.teacher.config
        x, ids = teacher.ffn_input(layer), teacher.recorded(f"L{layer}.expert_ids")
        weights = teacher.recorded(f"L{layer}.expert_weights")
        got = None
        if x is not None and ids is not None and weights is not None:
            start, (inputs, chosen, weight) = join(x, ids, weights)
            mask = choices.as_mask(chosen, config.n_routed_experts)  # [R, E]
            spread = torch.zeros(mask.shape, dtype=weight.dtype).scatter_(-1, chosen, weight)  # [R, E]
            routing = moe.Routing(spread, mask, spread)
            layer_weights = teacher.layer_weights(layer).at("ffn")
            got = Rows(moe.moe(inputs, routing, layer_weights, config, teacher.numerics), start)
        self.judge("experts", f"L{layer}.ffn_out", got)

    def ffn_expand(self, layer: int) -> None:
        """Recorded expert output and streams give the layer's streams."""
        teacher = self.teacher
        h, y = teacher.recorded(f"L{layer}.h_attn"), teacher.recorded(f"L{layer}.ffn_out")
        got = None
        if h is not None and y is not None:
            start, (streams, output) = join(h, y)
            mixed = self._mix(layer, "ffn", streams)
            got = Rows(hyper_connections.expand(output, streams, mixed.post, mixed.comb, teacher.numerics), start)
        self.judge("expand ffn", f"L{layer}.h_ffn", got)

    def taps(self) -> None:
        """Recorded streams give the draft's target features."""
        teacher, targets = self.teacher, self.teacher.config.dspark_target_layer_ids
        if not teacher.config.num_nextn_predict_layers or not targets:
            return
        streams = [teacher.entering(layer) for layer in targets]
        present = [each for each in streams if each is not None]
        got = None
        if len(present) == len(streams):
            start, values = join(*present)
            got = Rows(torch.cat([draft.tap(h, teacher.numerics) for h in values], dim=-1), start)
        self.judge("taps", "main_hidden", got)

    def final_norm(self) -> None:
        """Recorded last streams give the normalised final rows."""
        teacher = self.teacher
        last = teacher.config.num_hidden_layers - 1
        h, pre = teacher.recorded(f"L{last}.h_ffn"), teacher.recorded(f"L{last}.ffn_pre")
        got = None
        if h is not None and pre is not None:
            start, (streams, weights) = join(h, pre)
            x = hyper_connections.collapse(streams, weights, teacher.numerics)  # [R, D]
            weight = teacher.model.weights["norm"]  # [D]
            got = Rows(norm.rms_norm(x, weight, teacher.config.rms_norm_eps, teacher.numerics), start)
        self.judge("final norm", "hidden_final", got)

    def head(self) -> None:
        """Recorded final rows give the logits; recorded logits the first greedy token."""
        teacher, recording = self.teacher, self.teacher.recording
        z, found = teacher.recorded("hidden_final"), recording.rows("logits", teacher.length)
        if z is None or found is None:
            self.findings.skip("logits", "not recorded" if found is None else "hidden_final is not recorded")
            return
        _, (final, logits) = join(z, Rows(*found))
        got = teacher.model.logits(final)  # [R, V]
        self.findings.values("logits", "logits", got, logits.to(got.dtype), "model.logits_from_hidden")
        if teacher.greedy is not None:
            choices.tokens(self.findings, "greedy_ids[0]", got[-1:], teacher.greedy[:1], choices.float_margin())

    def _mix(self, layer: int, sublayer: str, h: Tensor) -> hyper_connections.Mixing:
        weights = self.teacher.layer_weights(layer)
        names = (f"hc_{sublayer}_fn", f"hc_{sublayer}_scale", f"hc_{sublayer}_base")
        fn, scale, base = (weights[name] for name in names)
        return hyper_connections.mix(h, fn, scale, base, self.teacher.config)
