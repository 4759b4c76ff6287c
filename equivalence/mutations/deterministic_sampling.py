"""Faults of check `deterministic_sampling`: ways in which drafts can come to show in a text, or lose their law.

Knows the text of `optimized/`; the engine plants them. Two that look like faults change nothing and have no place here:
drafts of a coupled request that are drawn with wrong noise, or from a stale ring, give the same text, so that only the
form `reference`, which compares what was drafted, can tell.
"""

from __future__ import annotations

from equivalence.mutations.engine import Mutation

SELECTION = ("00011", "00015", "00016", "00018", "00024", "00026", "00031", "00045", "00056", "00063")
"""Cases that catch the faults: every number of drafts, both rules, fixed and scheduled lengths, the reference."""

_RATIO = ("00047", "00055", "00063")
"""The ratio rule against the reference: noise that is wrong everywhere is alike in every circumstance."""

_DRAFTED = ("00015", "00031", "00047", "00063")
"""What was drafted against the reference."""

_SCHEDULED = ("00013", "00026", "00028", "00048", "00053")

_VERIFIER = "optimized/engine/verifier.py"
_CHOOSER = "optimized/engine/draft_chooser.py"
_ADJUSTMENTS = "optimized/engine/adjustments.py"
_ENGINE = "optimized/engine/engine.py"
_PIPELINE = "optimized/engine/step_pipeline.py"
_SCHEDULE = "optimized/engine/verification_schedule.py"
_ROWS = "optimized/worker/decode_rows.py"
_RUNNER = "optimized/worker/model_runner.py"
_CAPTURED = "optimized/worker/captured_steps.py"
_CACHES = "optimized/model/caches.py"
_DRAFT = "optimized/model/draft.py"
_PORTABLE = "optimized/ops/portable/"

NOISE = (
    Mutation(
        "draft_noise_of_the_target_in_ratio",
        _VERIFIER,
        'role = TARGET if self._rule == "coupled" else DRAFT',
        "role = TARGET",
        "§1.7: a draft that shares the bonus token's noise is no independent proposal",
        _RATIO,
    ),
    Mutation(
        "draft_noise_of_its_own_in_coupled",
        _VERIFIER,
        'role = TARGET if self._rule == "coupled" else DRAFT',
        "role = DRAFT",
        "§1.7: coupled drafts share the target's noise, or none is kept but by chance",
        _DRAFTED,
    ),
    Mutation(
        "draft_noise_one_position_on",
        _CHOOSER,
        "position=self._sampling.position + slot)",
        "position=self._sampling.position + slot + 1)",
        "§1.7: noise belongs to the position of the token that it draws",
        _DRAFTED,
    ),
    Mutation(
        "first_position_of_the_drafts_late",
        _PIPELINE,
        "prepared.anchors[places] + accepted + 2)",
        "prepared.anchors[places] + 2)",
        "§1.7: drafts stand after the token that followed the accepted ones",
        _DRAFTED,
    ),
    Mutation(
        "residual_noise_is_accept_noise",
        _VERIFIER,
        "torch.full_like(seed, ACCEPT)",
        "torch.full_like(seed, RESIDUAL)",
        "§5.1: the test and what replaces a draft that fails it share no word",
        _RATIO,
    ),
    Mutation(
        "block_rows_at_one_position",
        _VERIFIER,
        "integers([one.position for one in sequences]) + torch.from_numpy(slot)",
        "integers([one.position for one in sequences])",
        "§5.1: each row of a block draws with the noise of its own position",
    ),
    Mutation(
        "samples_share_their_noise",
        _VERIFIER,
        "sample=integers([one.sample_index for one in sequences])",
        "sample=integers([0 for one in sequences])",
        "§5.1: the samples of a request differ",
        ("00006", "00014", "00062"),
    ),
    Mutation(
        "seeds_share_their_noise",
        _VERIFIER,
        "seed=integers([_signed(one.request.seed) for one in sequences])",
        "seed=integers([7 for one in sequences])",
        "§5.1: other seeds give other texts",
        ("00006", "00014", "00062"),
    ),
)

RULES = (
    Mutation(
        "first_draft_unverified",
        _VERIFIER,
        "        committed = torch.where(kept, rows.drafts, tokens)  # [S]\n",
        "        kept = kept.index_fill(0, rows.grid[:, 0], True) & (rows.drafts >= 0)\n"
        "        committed = torch.where(kept, rows.drafts, tokens)  # [S]\n",
        "§1.1: every draft is judged",
    ),
    Mutation(
        "drafts_after_a_refused_one_kept",
        _VERIFIER,
        "kept[rows.grid].long().cumprod(dim=1).sum(dim=1)",
        "kept[rows.grid].long().sum(dim=1)",
        "§1.1: the first refusal ends the block",
    ),
    Mutation(
        "residual_not_subtracted",
        _PORTABLE + "verify.py",
        "rest = (p - alpha * q).clamp_(min=0)",
        "rest = p.clone()",
        "§1.7: what replaces a refused draft is drawn from what is left of p without q",
        _RATIO,
    ),
    Mutation(
        "accepted_by_the_better_probability",
        _PORTABLE + "verify.py",
        "kept = uniform * q.gather(1, places)[:, 0] < p.gather(1, places)[:, 0]",
        "kept = q.gather(1, places)[:, 0] <= p.gather(1, places)[:, 0]",
        "§1.7: a draft that p likes less is still kept with probability p / q",
        _RATIO,
    ),
    Mutation(
        "greedy_put_to_the_ratio_test",
        _VERIFIER,
        "drawn = [not is_greedy(block.sequence.request.params) for block in blocks]",
        "drawn = [True for block in blocks]",
        "§1.1: a greedy request keeps what its argmax confirms, under either rule",
        ("00010", "00011", "00027", "00055"),
    ),
    Mutation(
        "drafts_at_another_temperature",
        _CHOOSER,
        "processed = process_logits(known, sampling)",
        "processed = process_logits(known, replace(sampling, temperature=sampling.temperature.clamp(max=1.0)))",
        "§1.7: drafts are drawn at the temperature and through the filters of their request",
        _DRAFTED,
    ),
    Mutation(
        "drafts_without_bias",
        _CHOOSER,
        "        if self._bias is not None:\n            known = adjust_logits(known, self._bias)\n",
        "",
        "§1.7: bias holds for drafts too",
        _DRAFTED,
    ),
    Mutation(
        "proposals_of_another_slot",
        _PIPELINE,
        "self._draft_rows.index_copy_(0, slots, rows)",
        "self._draft_rows.index_copy_(0, slots.flip(0), rows)",
        "§1.7: a draft is judged by the row that it was drawn from",
        ("00011", "00027", "00055", "00063"),
    ),
)

BLOCKS = (
    Mutation(
        "penalty_a_step_late",
        "optimized/engine/token_counts.py",
        "counts[row:, ",
        "counts[row + 1 :, ",
        "§5.2: a row counts every draft before it",
    ),
    Mutation(
        "repetition_without_drafts",
        _ADJUSTMENTS,
        "seen = stands | (",
        "seen = (stands & False) | (",
        "§5.2: a row has seen every draft before it",
        ("00084", "00085", "00092"),
    ),
    Mutation(
        "stop_string_missed_at_a_block_edge",
        _ENGINE,
        "            sequence.append(one.token)\n            self._processor.take(sequence)\n",
        "            sequence.append(one.token)\n"
        "            if one is drawn[-1]:\n"
        "                self._processor.take(sequence)\n",
        "§5.4: every token of a block is looked at",
    ),
    Mutation(
        "drafts_after_a_stop_committed",
        _ENGINE,
        "            if sequence.finish_reason is not None:\n                break\n            error =",
        "            if sequence.finish_reason == 'length':\n                break\n            error =",
        "§1.1: what a block holds beyond the end of its sequence is dropped",
    ),
    Mutation(
        "accepted_drafts_forgotten_in_flight",
        _ROWS,
        'position - one["assumed"] + previous.accepted[source]',
        'position - one["assumed"]',
        "§6.6: a step stands where the step in flight has left it",
    ),
    Mutation(
        "boundary_changed_after_preemption",
        _ENGINE,
        'if step.plan.kind == "prefill" and one.token_ids and ends[r] == one.position - 1 and self._is_live(step, r)',
        'if step.plan.kind == "prefill" and one.token_ids and ends[r] < 0 and self._is_live(step, r)',
        "§1.7: the blocks of a resumed request are those of the undisturbed run",
        ("00010", "00058"),
    ),
    Mutation(
        "anchor_not_moved_by_what_was_kept",
        _RUNNER,
        "step.anchors[places] + accepted,",
        "step.anchors[places],",
        "§1.2: drafts follow the last token that was processed and kept",
        _DRAFTED,
    ),
    Mutation(
        "ring_not_rewound",
        _CACHES,
        "return self.window + self.backtrack",
        "return self.window",
        "§3.2: rows of refused drafts must not take the place of what is still seen",
    ),
    Mutation(
        "open_group_not_rewound",
        _CACHES,
        "return ratio + self.backtrack",
        "return ratio",
        "§3.2: values of an open group survive refused drafts",
    ),
    Mutation(
        "engram_history_not_rewound",
        _CACHES,
        "return max(1, self.max_ngram - 1) + self.backtrack",
        "return max(1, self.max_ngram - 1)",
        "§3.2: n-grams survive refused drafts",
    ),
)

LENGTHS = (
    Mutation(
        "confidence_peeks_at_its_own_token",
        _DRAFT,
        "        confidence.append(fp32_linear(features, draft.confidence)[:, 0])\n"
        "        before = choose(biased, slot)\n",
        "        before = choose(biased, slot)\n"
        "        features = torch.cat((x[:, slot], draft.markov_embed.index_select(0, before)), dim=1)\n"
        "        confidence.append(fp32_linear(features, draft.confidence)[:, 0])\n",
        "§1.9: a confidence that knows its token biases what is committed",
        _DRAFTED,
    ),
    Mutation(
        "budget_from_the_confidences_at_hand",
        _SCHEDULE,
        "decides = one.proposal if in_flight[r] else one.proposed_before",
        "decides = one.proposal",
        "§1.9: the budget must not know the drafts that it decides about",
        _SCHEDULED,
    ),
    Mutation(
        "lengths_from_the_next_confidence",
        _PORTABLE + "verification_lengths.py",
        "by_slot = torch.where(eligible, survival, -1.0).t().flatten()",
        "by_slot = torch.where(eligible, survival.roll(-1, 1), -1.0).t().flatten()",
        "§1.9: a later confidence never decides about an earlier draft",
        _SCHEDULED,
    ),
    Mutation(
        "survivals_of_the_step_before",
        _ROWS,
        "survival = torch.where(flies[:, None], previous.survival[source], survival)",
        "survival = torch.where(flies[:, None], survival, survival)",
        "§1.9: the split goes by the drafts at hand",
        ("00028", "00030", "00048"),
    ),
)

CUDA = (
    Mutation(
        "draft_blocks_of_the_captured_anchors",
        _CAPTURED,
        "            buffer[:count].copy_(values)\n",
        '            if ("draft", bucket) not in self._graphs:\n                buffer[:count].copy_(values)\n',
        "§1.2: a block is drafted after the tokens that were there when its graph was captured",
        cases=_DRAFTED,
        backend="cuda",
    ),
    Mutation(
        "draft_blocks_are_not_replayed",
        _CAPTURED,
        "        graph.replay()\n",
        '        if shape[0] == "forward":\n            graph.replay()\n',
        "§1.2: a block has the states of the block that was captured",
        cases=_DRAFTED,
        backend="cuda",
    ),
)

TABLE = (*NOISE, *RULES, *BLOCKS, *LENGTHS, *CUDA)
