"""Faults of check `yoco`: slips of bounded replay, in the rows that stay, in what is keyed by row, in the start.

Knows the text of `optimized/`; the engine plants them. Selections and candidates of layers before the cut are not used
after it (the cut lies before the last KV source selects), so that keeping those of the old rows changes nothing, and
has no place here; the faults of that kind below use what the decoder layers do read. Nor has a decode row without its
start: a keep of more than a window leaves no key below the start within its reach.
"""

from __future__ import annotations

from equivalence.mutations.engine import Mutation

SELECTION = ("00000", "00001", "00006", "00009", "00018")
"""Cases that catch the faults: generated ones over random models."""

_STEP = "optimized/model/step.py"
_REPLAY = "optimized/model/replay.py"
_ATTENTION = "optimized/model/attention.py"
_SELECTIONS = "optimized/model/selections.py"
_TRANSFORMER = "optimized/model/transformer.py"
_INPUTS = "optimized/worker/input_batch.py"
_CONFIG = "optimized/config.py"
_ENGINE = "optimized/engine/engine.py"

START = (
    Mutation(
        "start_anew_after_preemption",
        _ENGINE,
        "                sequence.start()\n",
        "                sequence.start()\n"
        "            if plan.kind == 'prefill' and sequence.times_started > 1:\n"
        "                start = self._config.replay_start(sequence.position)\n"
        "                plan.replay_starts[members.index(sequence)] = start\n",
        "§3.2: the start belongs to the request for life; recomputed from prompt and output it moves",
        ("00006", "00018"),
    ),
    Mutation(
        "start_one_late",
        _CONFIG,
        "max(0, prompt_len - self.yoco_keep_tokens)",
        "max(0, prompt_len - self.yoco_keep_tokens + 1)",
        "§3.2: s = L - keep",
    ),
    Mutation(
        "start_of_the_chunk",
        _INPUTS,
        "            np.asarray(plan.replay_starts, dtype=np.int64),\n        )\n    )\n",
        "            np.where(plan.replay_starts > 0, ends - counts, 0),\n        )\n    )\n",
        "§3.2: s is absolute, the same for every chunk",
    ),
    Mutation(
        "start_of_the_neighbour",
        _INPUTS,
        "            np.asarray(plan.replay_starts, dtype=np.int64),\n        )\n    )\n",
        "            np.roll(np.asarray(plan.replay_starts, dtype=np.int64), 1),\n        )\n    )\n",
        "§3.4: the floor goes by request",
    ),
    Mutation(
        "prompt_logprobs_with_a_start",
        _ENGINE,
        "self._config.replay_start(len(prompt)) if request.params.prompt_logprobs is None else 0",
        "self._config.replay_start(len(prompt))",
        "§3.4: a request whose rows are all read runs them all",
    ),
)

ROWS = (
    Mutation(
        "placeholder_row_in_the_ring",
        _STEP,
        " & (self.positions >= self.replay_starts)",
        "",
        "§3.2: rows before s have no place in decoder rings",
    ),
    Mutation(
        "window_without_a_floor",
        _STEP,
        "decoder_window = torch.where(position >= inputs.replay_starts[:, None], window, -1)",
        "decoder_window = window",
        "§3.2: decoder windows hold no position before s",
    ),
    Mutation(
        "floor_off_by_one",
        _STEP,
        "position >= inputs.replay_starts[:, None], window",
        "position > inputs.replay_starts[:, None], window",
        "§3.2: row s itself is seen",
    ),
    Mutation(
        "floor_from_the_layer_after_the_cut",
        _ATTENTION,
        "if layer >= config.decoder_start:",
        "if layer > config.decoder_start:",
        "§3.3: the last KV source's own window belongs to the decoder",
    ),
    Mutation(
        "row_at_the_start_dropped",
        _REPLAY,
        "replay_starts - first_positions, 0",
        "replay_starts - first_positions + 1, 0",
        "§3.2: rows from s on are kept",
    ),
    Mutation(
        "rows_taken_by_offset",
        _REPLAY,
        "self.h.index_select(0, rows)",
        "self.h[: len(rows)]",
        "§3.4: hidden rows are gathered, not cut off",
    ),
    Mutation(
        "mix_taken_by_offset",
        _REPLAY,
        "self.pre.index_select(0, rows)",
        "self.pre[: len(rows)]",
        "§3.4: what the residual stream carries is gathered with it",
    ),
    Mutation(
        "sources_of_kept_rows_only",
        _TRANSFORMER,
        "        x = attention_input(rows.h, rows.pre, layer, config)\n",
        "        rows = rows.compacted(kept, config, self._geometry, self._frequencies)\n"
        "        x = attention_input(rows.h, rows.pre, layer, config)\n"
        "        attention.store_compressed(\n"
        "            x, layer.attention.compressor, config, rows.step, caches.sources[number]\n"
        "        )\n"
        "        return rows\n",
        "§3.3: compressed KV and index keys of the last source are written for every row",
    ),
)

METADATA = (
    Mutation(
        "slots_of_the_old_rows",
        _REPLAY,
        "slots=inputs.slots.index_select(0, kept.rows)",
        "slots=inputs.slots[: len(kept.rows)]",
        "§3.4: state slots go by row",
    ),
    Mutation(
        "requests_of_the_old_rows",
        _REPLAY,
        "row_request=inputs.row_request.index_select(0, kept.rows)",
        "row_request=inputs.row_request[: len(kept.rows)]",
        "§3.4: request ids go by row, and with them the pages",
    ),
    Mutation(
        "first_positions_of_the_old_rows",
        _REPLAY,
        "first_positions=positions.index_select(0, kept.first_rows)",
        "first_positions=inputs.first_positions.index_select(0, kept.rows)",
        "§3.4: a chunk begins at its first kept row",
        ("00006",),
    ),
    Mutation(
        "first_rows_of_the_old_rows",
        _REPLAY,
        "first_rows=kept.first_rows,",
        "first_rows=inputs.first_rows.index_select(0, kept.rows).clamp(max=len(kept.rows) - 1),",
        "§3.4: row offsets are the prefix sum of the kept counts",
    ),
    Mutation(
        "ends_of_the_old_rows",
        _REPLAY,
        "end_positions=inputs.end_positions.index_select(0, kept.rows)",
        "end_positions=inputs.end_positions[: len(kept.rows)]",
        "§3.4: which rows enter the ring goes by row",
    ),
    Mutation(
        "query_offsets_of_the_old_rows",
        _REPLAY,
        "query_start=kept.query_start",
        "query_start=[min(start, len(kept.rows)) for start in inputs.query_start]",
        "§3.4: cu_seqlens are rebuilt",
        ("00013",),
    ),
    Mutation(
        "logits_row_of_the_old_rows",
        _REPLAY,
        "torch.searchsorted(kept.rows, inputs.sample_rows)",
        "inputs.sample_rows.clamp(max=len(kept.rows) - 1)",
        "§3.4: the logits index is remapped",
    ),
    Mutation(
        "visible_lengths_of_the_old_rows",
        _SELECTIONS,
        "        other = Selections(self._config, step)\n",
        "        from dataclasses import replace\n"
        "\n"
        "        old = self._step.ratios\n"
        "        cut = {r: replace(new, visible=old[r].visible[: len(rows)]) for r, new in step.ratios.items()}\n"
        "        other = Selections(self._config, replace(step, ratios=cut))\n",
        "§3.4: how many entries a row sees is gathered",
    ),
    Mutation(
        "candidates_of_an_older_layout",
        _SELECTIONS,
        "        if layer == config.candidate_source_layer_id:\n",
        "        kept = getattr(config, '_candidates', None)\n"
        "        columns = -(-scores.shape[1] // block)\n"
        "        if kept is not None and kept.shape == (scores.shape[0], columns):\n"
        "            self._candidates = kept\n"
        "        elif layer == config.candidate_source_layer_id:\n"
        "            object.__setattr__(\n"
        "                config,\n"
        "                '_candidates',\n"
        "                select_candidates(scores, indices.visible, block, config.candidate_topk_blocks),\n"
        "            )\n"
        "        if self._candidates is None and layer == config.candidate_source_layer_id:\n",
        "§3.4: candidate blocks are bound to the rows that they were chosen for",
    ),
    Mutation(
        "ties_to_the_higher_index",
        "optimized/ops/portable/selection.py",
        "return (ordered << _INDEX_BITS) + (_LAST_INDEX - index)",
        "return (ordered << _INDEX_BITS) + index",
        "§4.1: of equal scores the lower index is taken",
    ),
)

TABLE = (*START, *ROWS, *METADATA)
