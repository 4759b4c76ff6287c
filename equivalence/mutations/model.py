"""Faults of check `model`: terms of the reference switched off or distorted, one at a time.

Each is a plausible reading of the model that is wrong. Knows the text of `reference/`; the engine plants them. A fault
that no pack can see (a tie rule, a term below float32) has no place here. Packs are only compared on the CPU.
"""

from __future__ import annotations

import dataclasses

from equivalence.mutations.engine import Mutation

SELECTION = ("known_answers", "golden/")
"""Cases that catch the faults: known answers, then golden packs, official sub-steps and float32 end to end."""

_END_TO_END = ("golden/*/fp32_noq",)

_MODEL = "reference/model/"
_MIX = _MODEL + "hyper_connections.py"
_ROPE = _MODEL + "rope.py"
_ATTENTION = _MODEL + "attention.py"
_COMPRESSOR = _MODEL + "compressor.py"
_INDEXER = _MODEL + "indexer.py"
_ENGRAM = _MODEL + "engram.py"
_MOE = _MODEL + "moe.py"
_DRAFT = _MODEL + "draft.py"
_TRANSFORMER = _MODEL + "transformer.py"
_FORMATS = "reference/formats.py"

HYPER_CONNECTIONS = (
    Mutation(
        "own_pre_attention",
        _TRANSFORMER,
        'collapse(h, pre, numerics)  # [..., T, D]\n        x = norm.rms_norm(u, weights["attn_norm"]',
        'collapse(h, mix_attn.pre, numerics)  # [..., T, D]\n        x = norm.rms_norm(u, weights["attn_norm"]',
        "§3: attention is collapsed by the pre that the layer before hands over, not by its own",
    ),
    Mutation(
        "own_pre_experts",
        _TRANSFORMER,
        "collapse(h, mix_attn.pre, numerics)",
        "collapse(h, mix_ffn.pre, numerics)",
        "§3: the experts are collapsed by attention's pre",
    ),
    Mutation(
        "first_pre_uniform",
        _MIX,
        "torch.cat((first[:1] + 1, first[1:]))",
        "first + 1 / h.shape[-2]",
        "§3: the first pre is (1, 0, 0, 0)",
    ),
    Mutation("post_without_two", _MIX, "post = 2 * torch", "post = torch", "§3: post is twice a sigmoid"),
    Mutation("post_scale", _MIX, "* scale[1] +", "* scale[0] +", "§3: post has its own scale"),
    Mutation(
        "comb_transposed",
        _MIX,
        "(comb[..., :, :, None]",
        "(comb.transpose(-1, -2)[..., :, :, None]",
        "§3: the first index of comb is the source stream",
    ),
    Mutation(
        "sinkhorn_iterations",
        _MIX,
        "range(iterations - 1)",
        "range(iterations // 10)",
        "§3: twenty row and column passes",
    ),
    Mutation(
        "pre_eps",
        _MIX,
        "+ base[:copies]) + config.hc_eps",
        "+ base[:copies]) + 10 * config.hc_eps",
        "§3: pre has 1e-6 added",
    ),
    Mutation(
        "mix_eps",
        _MIX,
        "+ config.rms_norm_eps)",
        "+ config.hc_eps)",
        "§3: the statistic has 1e-20 added",
    ),
    Mutation(
        "norm_eps",
        _MODEL + "norm.py",
        "torch.rsqrt(mean_square + eps)",
        "torch.rsqrt(mean_square + 1e-6)",
        "§0: eps is 1e-20 everywhere",
    ),
    Mutation(
        "norm_offset_weight",
        _MODEL + "norm.py",
        "numerics.bf16(weight * (",
        "numerics.bf16((1 + weight) * (",
        "§0: norm weights are plain multipliers",
    ),
)

ROPE = (
    Mutation(
        "yarn_missing",
        _ROPE,
        "return theta / scaling.factor * ramp + theta * (1 - ramp)",
        "return theta",
        "§4.1: compressed layers are scaled by YaRN",
    ),
    Mutation(
        "yarn_everywhere",
        _ROPE,
        "if ratio == 0 else",
        "if ratio < 0 else",
        "§4.1: ratio 0 has its own base and no YaRN",
    ),
    Mutation(
        "compressed_base",
        _ROPE,
        "plain_frequencies(config.compress_rope_theta, dims)",
        "plain_frequencies(config.rope_theta, dims)",
        "§4.1: base 160000 in compressed layers",
    ),
    Mutation(
        "rope_halves",
        _ROPE,
        "rotated[..., 0::2], rotated[..., 1::2]",
        "rotated[..., : rotary // 2], rotated[..., rotary // 2 :]",
        "§4.1: pairs are interleaved",
    ),
    Mutation("rope_direction", _ROPE, "sin = -sin if inverse", "sin = -sin if not inverse", "§4.1: sign of the angle"),
    Mutation(
        "inverse_rope_missing",
        _TRANSFORMER,
        "o = rope.rotate(o, positions[:, None], frequencies, numerics, inverse=True)",
        "o = o.clone()",
        "§4.7: the output is rotated back",
        _END_TO_END,
    ),
)

ATTENTION = (
    Mutation(
        "per_head_q_norm",
        _ATTENTION,
        "q = q.unflatten(-1, (config.num_attention_heads, config.head_dim))",
        "q = q.unflatten(-1, (config.num_attention_heads, config.head_dim))\n"
        "    q = q * torch.rsqrt(q.square().mean(dim=-1, keepdim=True))",
        "§4.2: no norm per query head",
    ),
    Mutation(
        "no_sink",
        _ATTENTION,
        "+ torch.exp2(sink_logit - n)",
        "+ 0 * torch.exp2(sink_logit - n)",
        "§4.7: the sink joins the denominator",
    ),
    Mutation(
        "sink_scaled",
        _ATTENTION,
        "sink_logit = (sink * log2e)",
        "sink_logit = (sink * q.shape[-1] ** -0.5 * log2e)",
        "§4.7: the sink is an unscaled logit",
    ),
    Mutation(
        "softmax_scale",
        _ATTENTION,
        "(q.shape[-1] ** -0.5 * log2e)",
        "((q.shape[-1] // 2) ** -0.5 * log2e)",
        "§4.7: the scale is head_dim^-0.5",
    ),
    Mutation(
        "window_one_more",
        _ATTENTION,
        "(key > query - window)",
        "(key >= query - window)",
        "§4.3: the window holds 128 positions with the query's own",
        _END_TO_END,
    ),
    Mutation(
        "window_not_quantised",
        _ATTENTION,
        "return numerics.window_kv(rope.rotate(normed, positions, frequencies, numerics))",
        "return rope.rotate(normed, positions, frequencies, numerics)",
        "§4.3: window keys are stored in FP8",
    ),
    Mutation(
        "window_not_rotated",
        _ATTENTION,
        "return numerics.window_kv(rope.rotate(normed, positions, frequencies, numerics))",
        "return numerics.window_kv(normed)",
        "§4.3: window keys are rotated at their position",
    ),
    Mutation(
        "output_lora_quantised",
        _ATTENTION,
        "grouped, wo_a)",
        "numerics.activation(grouped), wo_a)",
        "§2: wo_a is a plain bf16 product",
    ),
    Mutation(
        "output_groups_interleaved",
        _ATTENTION,
        "grouped = o.flatten(-2).unflatten(",
        "grouped = o.transpose(-1, -2).flatten(-2).unflatten(",
        "§4.8: a group is eight heads after each other",
    ),
)

COMPRESSION = (
    Mutation(
        "pool_over_channels",
        _COMPRESSOR,
        "torch.softmax(gates, dim=-2)",
        "torch.softmax(gates, dim=-1)",
        "§4.4: the softmax is over the tokens of a group",
    ),
    Mutation(
        "latent_rope_position",
        _COMPRESSOR,
        "torch.arange(rows, device=device) * ratio",
        "torch.arange(rows, device=device) * ratio + (ratio - 1)",
        "§4.4: a row is rotated at its group's first token",
    ),
    Mutation(
        "compressed_kv_format",
        _COMPRESSOR,
        "numerics.compressed_kv(",
        "numerics.index_vector(",
        "§5.2: compressed rows have E4M3 scales over 16 channels",
    ),
    Mutation(
        "index_key_after_rope",
        _TRANSFORMER,
        "context.index_keys = indexer.keys(latents,",
        "starts = compressor.row_positions(latents.shape[-2], ratio, latents.device)\n"
        "        context.index_keys = indexer.keys(rope.rotate(latents, starts, frequencies, numerics),",
        "§4.5: index keys come from the latent before RoPE",
        _END_TO_END,
    ),
    Mutation(
        "visible_one_late",
        _INDEXER,
        "return (positions + 1) // ratio",
        "return positions // ratio",
        "§4.5: a group is visible as soon as its last token is there",
    ),
    Mutation(
        "head_weight_scale",
        _INDEXER,
        "config.index_head_dim**-0.5 * config.index_n_heads**-0.5",
        "config.index_head_dim**-0.5",
        "§4.5: head weights are scaled by both",
    ),
    Mutation("score_without_relu", _INDEXER, "torch.relu(dots) * a", "dots * a", "§4.5: relu of the dot product"),
    Mutation(
        "tie_to_higher_row",
        _INDEXER,
        "order = torch.sort(score, dim=-1, descending=True, stable=True).indices",
        "order = score.shape[-1] - 1 - torch.sort(score.flip(-1), dim=-1, descending=True, stable=True).indices",
        "§4.6: the lower index wins a tie",
    ),
    Mutation(
        "newest_block_not_forced",
        _INDEXER,
        "torch.where(newest, torch.inf, block_score)",
        "block_score + 0 * newest",
        "§4.6: the block with the newest row is always a candidate",
    ),
    Mutation(
        "candidates_ignored",
        _TRANSFORMER,
        "score = torch.where(context.candidates, score, -torch.inf)",
        "score = score.clone()",
        "§4.6: later sources select among the candidates",
        _END_TO_END,
    ),
    Mutation("one_row_more", _INDEXER, "(rank < count)", "(rank <= count)", "§4.6: the k highest rows, and no more"),
)

ENGRAM = (
    Mutation(
        "hash_multiplier",
        _ENGRAM,
        "* multipliers[distance])",
        "* multipliers[distance - 1])",
        "§6.2: one multiplier a look-back distance",
    ),
    Mutation("hash_pad", _ENGRAM, "value=pad)", "value=0)", "§6.2: look-backs before the start are the compressed pad"),
    Mutation(
        "gate_without_root",
        _ENGRAM,
        "torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot)",
        "dot",
        "§6.3: signed square root before the sigmoid",
    ),
    Mutation(
        "gate_unsigned",
        _ENGRAM,
        "torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot)",
        "torch.sqrt(dot.abs().clamp(min=1e-6))",
        "§6.3: the root keeps the sign",
    ),
    Mutation(
        "gate_floor",
        _ENGRAM,
        "dot.abs().clamp(min=1e-6)",
        "dot.abs()",
        "§6.3: the root has a floor of 1e-6",
    ),
    Mutation(
        "value_per_stream",
        _ENGRAM,
        "kv[..., :-1, :], kv[..., -1:, :]",
        "kv[..., :-1, :], kv[..., :-1, :]",
        "§6.3: one value for all streams, behind the keys",
    ),
    Mutation(
        "gate_scale", _ENGRAM, "* h.shape[-1] ** -0.5", "* h.shape[-1] ** -0.25", "§6.3: the dot product is scaled"
    ),
)

EXPERTS = (
    Mutation(
        "symmetric_clamp",
        _MOE,
        "gate = gate.clamp(max=config.swiglu_limit)",
        "gate = gate.clamp(-config.swiglu_limit, config.swiglu_limit)",
        "§7: the gate is clamped from above only",
    ),
    Mutation(
        "weight_after_w2",
        _MOE,
        "v = v if weight is None else weight * v  # [..., I]\n    return ",
        "return (1 if weight is None else weight) * ",
        "§7: the routing weight enters before w2",
    ),
    Mutation(
        "gate_without_bias", _MOE, 'biased = score + weights["bias"]', "biased = score", "§7: selection has the bias"
    ),
    Mutation(
        "biased_weights",
        _MOE,
        "torch.where(chosen, score, 0)",
        "torch.where(chosen, biased, 0)",
        "§7: weights have none",
    ),
    Mutation(
        "weights_not_normalised",
        _MOE,
        "if config.norm_topk_prob:",
        "if not config.norm_topk_prob:",
        "§7: the chosen weights are normalised",
    ),
    Mutation(
        "routed_scale", _MOE, "config.routed_scaling_factor * weight", "weight", "§7: routed weights are scaled by 1.5"
    ),
    Mutation(
        "softplus_without_root",
        _MOE,
        'torch.sqrt(torch.nn.functional.softplus(linear.fp32_linear(x, weights["weight"])))',
        'torch.nn.functional.softplus(linear.fp32_linear(x, weights["weight"]))',
        "§7: the score is the root of a softplus",
    ),
    Mutation(
        "gate_and_up_swapped", _MOE, "silu(gate) * up", "silu(up) * gate", "§2: w1 is the gate, w3 the up projection"
    ),
    Mutation(
        "shared_expert_dropped",
        _MOE,
        'total = total + expert(rows, None, weights.at("shared_experts"), config, numerics)',
        "total = total + 0",
        "§7: the shared expert always joins",
    ),
)

DRAFT = (
    Mutation(
        "tap_one_later",
        _TRANSFORMER,
        "if layer in config.dspark_target_layer_ids:",
        "if layer + 1 in config.dspark_target_layer_ids:",
        "§9: taps are the streams entering the target layers",
        _END_TO_END,
    ),
    Mutation(
        "causal_block",
        _DRAFT,
        "seen = seen.expand(*own.shape[:-1], -1)",
        "seen = seen.expand(*own.shape[:-1], -1)\n"
        "    seen = seen & torch.ones(block, keys.shape[-2]).tril(keys.shape[-2] - block).bool()",
        "§9: every row of a block sees the whole block",
        _END_TO_END,
    ),
    Mutation(
        "markov_from_anchor",
        _DRAFT,
        'last["markov_head.embed"][before]',
        'last["markov_head.embed"][anchor_tokens]',
        "§9: the Markov bias reads the token before the slot",
        _END_TO_END,
    ),
    Mutation(
        "confidence_after_norm",
        _DRAFT,
        "torch.cat((x[..., slot, :], e), dim=-1)",
        "torch.cat((z[..., slot, :], e), dim=-1)",
        "§9: the confidence reads the collapse before the norm",
        _END_TO_END,
    ),
    Mutation(
        "draft_positions",
        _DRAFT,
        "anchors[:, None] + 1 + torch.arange",
        "anchors[:, None] + torch.arange",
        "§9: block rows stand at p+1 to p+B",
        _END_TO_END,
    ),
    Mutation(
        "noise_token",
        _DRAFT,
        "config.dspark_noise_token_id)",
        "config.bos_token_id)",
        "§9: the other rows of a block hold the noise token",
        _END_TO_END,
    ),
    Mutation(
        "final_norm_before_collapse",
        _TRANSFORMER,
        "x = hyper_connections.collapse(h, pre, numerics)",
        "x = h.mean(dim=-2)",
        "§3: the last FFN's pre does the final collapse",
        _END_TO_END,
    ),
)

FORMATS = (
    Mutation("fp4_ties_down", _FORMATS, "(a >= 0.75)", "(a > 0.75)", "§5.2: FP4 rounds ties to the even code"),
    Mutation(
        "activation_floor",
        _FORMATS,
        "FP8_AMAX_FLOOR = 1e-4",
        "FP8_AMAX_FLOOR = 1e-8",
        "§5.1: the largest magnitude of a block counts as at least 1e-4",
    ),
    Mutation(
        "scale_rounded_down",
        _FORMATS,
        "(exponent + (fraction != 0))",
        "(exponent + 0 * (fraction != 0))",
        "§5: power-of-two scales are rounded up",
    ),
    Mutation(
        "nibbles_swapped",
        _FORMATS,
        "(packed & 0xF, packed >> 4)",
        "(packed >> 4, packed & 0xF)",
        "§2: the even column is the low nibble",
    ),
    Mutation(
        "activations_not_quantised",
        _MODEL + "linear.py",
        "operand = numerics.activation(x) if quantized else x",
        "operand = x",
        "§2.1: the input of an FP8 or FP4 linear is quantised",
    ),
)

TABLE = tuple(
    dataclasses.replace(mutation, backend="cpu")
    for mutation in (*HYPER_CONNECTIONS, *ROPE, *ATTENTION, *COMPRESSION, *ENGRAM, *EXPERTS, *DRAFT, *FORMATS)
)
