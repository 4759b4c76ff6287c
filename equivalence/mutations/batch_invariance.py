"""Faults of check `batch_invariance`: ways in which a row of the engine can come to depend on its circumstances.

Each is a fault that engines were seen to have, or a slip of the hand. Knows the text of `optimized/`; the engine plants
them. Some that look like faults change nothing and have no place here: a state slot that is not cleared (no index reads
what the request has not written itself), and row tiles of another height or a CUDA kernel for single tiles (float64
sums are rounded far above their order). A result that the host reads before it has arrived ends in an exception.
"""

from __future__ import annotations

from equivalence.mutations.engine import Mutation

SELECTION = ("0001", "0002")
"""Cases that catch the faults: random models, in every circumstance."""

_STEP = "optimized/model/step.py"
_ATTENTION = "optimized/model/attention.py"
_SELECTIONS = "optimized/model/selections.py"
_ENGRAM = "optimized/model/engram.py"
_CACHES = "optimized/model/caches.py"
_TRANSFORMER = "optimized/model/transformer.py"
_INPUTS = "optimized/worker/input_batch.py"
_ROWS = "optimized/worker/decode_rows.py"
_CAPTURED = "optimized/worker/captured_steps.py"
_VERIFIER = "optimized/engine/verifier.py"
_PORTABLE = "optimized/ops/portable/"

STATE = (
    Mutation(
        "ring_entries_left_stale",
        _STEP,
        "self._place(self.positions >= self.end_positions - size, size)",
        "self._place(self.positions >= self.end_positions - size + 3, size)",
        "§3.2: a chunk's last rows enter the ring; what is left out is read stale, of the slot's last owner",
    ),
    Mutation(
        "ring_too_small",
        _CACHES,
        "return self.window + self.backtrack",
        "return self.window - 2",
        "§3.2: a ring holds a whole window",
    ),
    Mutation(
        "ring_written_before_it_is_read",
        _ATTENTION,
        "    out = sparse_attention(q, rows,",
        "    store_packed(ring, place, rows)\n    out = sparse_attention(q, rows,",
        "§3.2: the first rows of a chunk read entries that its last rows take",
    ),
    Mutation(
        "own_rows_read_from_the_ring",
        _STEP,
        "torch.where(position >= self.first_positions[:, None], in_step, in_ring)",
        "torch.where(position > self.first_positions[:, None], in_step, in_ring)",
        "§3.2: keys of a chunk come from the chunk, those below it from the ring",
    ),
    Mutation(
        "earlier_rows_of_the_neighbour",
        _STEP,
        "torch.where(position >= self.first_positions[:, None], in_step, in_ring)",
        "torch.where((position >= 0) & (in_step >= 0), in_step, in_ring)",
        "§4.3: a chunk takes the rows before its own in the batch for its past",
    ),
    Mutation(
        "open_group_lost_at_the_chunk_edge",
        _ATTENTION,
        "        store_entries(cache.open_group, indices.open_place, gated)\n",
        "",
        "§4.3: a group that is open at the end of a chunk is closed by the next",
    ),
    Mutation(
        "engram_history_lost_at_the_chunk_edge",
        _ENGRAM,
        "    store_entries(caches.engram_ids, step.history_place, ids)\n",
        "",
        "§4.3: n-grams reach over chunk edges",
    ),
    Mutation(
        "engram_history_of_the_wrong_request",
        _ENGRAM,
        "torch.cat((ids, caches.engram_ids))",
        "torch.cat((ids, caches.engram_ids.roll(caches.geometry.history)))",
        "§4.2: history is read from the slot of another request",
    ),
    Mutation(
        "padding_row_in_a_slot_in_use",
        _ROWS,
        'slots=of_request(one["slot"])',
        'slots=of_request(one["slot"]).clamp(min=1)',
        "§4.1: padding rows write where nothing is read",
    ),
    Mutation(
        "token_of_another_row_in_flight",
        _ROWS,
        "previous.anchors[source]",
        "previous.anchors[source.flip(0)]",
        "§6.6: open tokens come from the request's own row in the step in flight",
    ),
)

PAGES = (
    Mutation(
        "page_0_read",
        _SELECTIONS,
        "self._step.inputs.entry(self._numbers[index_source], cache.page_entries)",
        "self._step.inputs.entry(self._numbers[index_source], cache.page_entries).clamp(min=0)",
        "§3.2: no entry is -1, not entry 0 of page 0, where rows without a place write",
    ),
    Mutation(
        "last_entry_of_a_page_in_the_next",
        _STEP,
        "(number.clamp(min=0) // page_entries)",
        "((number.clamp(min=0) + 1) // page_entries)",
        "§4.1: the last page's last entry goes to page 0, which all requests share",
    ),
    Mutation(
        "pages_of_the_first_request",
        _PORTABLE + "index_scores.py",
        "gathered = _keys(keys, page_table[request]).t()",
        "gathered = _keys(keys, page_table[0]).t()",
        "§4.1: index keys of the first request of a prefill step score all of its rows",
    ),
    Mutation(
        "decode_pages_of_the_first_request",
        _PORTABLE + "index_scores.py",
        "page_table.index_select(0, row_request[tile])",
        "page_table.index_select(0, row_request[tile] * 0)",
        "§4.1: index keys of the first request of a decode step score all of its rows",
    ),
    Mutation(
        "scores_before_the_keys_are_stored",
        _ATTENTION,
        "    if weights.compressor is not None and cache is not None and not stored:\n"
        "        store_compressed(x, weights.compressor, config, step, cache)\n"
        "    if weights.index_query is not None and cache is not None:\n"
        "        selections.make(layer, weights.index_query, cache, x, latent, turn)\n",
        "    if weights.index_query is not None and cache is not None:\n"
        "        selections.make(layer, weights.index_query, cache, x, latent, turn)\n"
        "    if weights.compressor is not None and cache is not None and not stored:\n"
        "        store_compressed(x, weights.compressor, config, step, cache)\n",
        "§4.1: current keys are written first, then scored with all others",
    ),
)

SELECTION_FAULTS = (
    Mutation(
        "selection_sees_the_last_chunk_only",
        _SELECTIONS,
        "        block = config.candidate_block_size\n",
        "        old = torch.arange(scores.shape[1], device=x.device) < (\n"
        "            self._step.inputs.first_positions[:, None] // cache.ratio\n"
        "        )\n"
        "        scores = scores.masked_fill(old, -torch.inf)\n"
        "        block = config.candidate_block_size\n",
        "§4.3: entries of earlier chunks are scored like those of the last",
    ),
    Mutation(
        "limit_of_the_first_request",
        _INPUTS,
        "last = int(np.max(plan.kv_lens, initial=1)) - 1",
        "last = int(plan.kv_lens[0]) - 1",
        "§4.1: whether a selection is needed is asked of the first request only",
    ),
    Mutation(
        "ties_by_arrival",
        _PORTABLE + "selection.py",
        "return (ordered << _INDEX_BITS) + (_LAST_INDEX - index)",
        "return (ordered << _INDEX_BITS) + (_LAST_INDEX - index * (-1 if scores.shape[0] == 1 else 1))",
        "§4.1: of equal scores the lower index is taken, whatever kernel the number of rows calls for",
    ),
    Mutation(
        "entry_turned_by_the_chunk",
        _STEP,
        "rotation(group * ratio, theta.compressed)",
        "rotation(torch.maximum(group * ratio, inputs.first_positions), theta.compressed)",
        "§4.3: an entry stands at its group's first token, also where the group began in an earlier chunk",
    ),
)

SUMS = (
    Mutation(
        "few_rows_take_another_kernel",
        _PORTABLE + "rounding.py",
        "    product = batched_matmul(tiles",
        "    if rows < 3:\n        return (x.float() @ operand.float()).double()[:rows]\n"
        "    product = batched_matmul(tiles",
        "§4.1: one kernel for any number of rows",
    ),
    Mutation(
        "experts_added_in_the_order_of_the_batch",
        _PORTABLE + "experts.py",
        "    for slot in range(1, outputs.shape[1]):\n        total = total + outputs[:, slot]\n",
        "    slots = list(range(1, outputs.shape[1]))\n"
        "    for slot in slots if outputs.shape[0] % 2 else slots[::-1]:\n"
        "        total = (total + outputs[:, slot]).to(torch.bfloat16).double()\n",
        "§4.1: a token's experts are added in ascending id, unrounded",
        ("00037", "00039"),  # the bundled model takes three experts a token
    ),
    Mutation(
        "scale_shared_by_the_rows",
        _PORTABLE + "quantize.py",
        "largest = groups.abs().amax(dim=-1).clamp_(min=6 * 2.0**-9)",
        "largest = groups.abs().amax(dim=0, keepdim=True).amax(dim=-1).expand(groups.shape[:-1]).clone()"
        ".clamp_(min=6 * 2.0**-9)",
        "§4.1: scales belong to a row, never to the batch",
    ),
    Mutation(
        "statistic_of_the_batch",
        _PORTABLE + "rms_norm.py",
        "mean_last(wide.square())",
        "mean_last(wide.square()).mean(dim=0, keepdim=True)",
        "§4.1: a row's norm is its own",
    ),
)

RESULTS = (
    Mutation(
        "noise_by_place_in_the_batch",
        _VERIFIER,
        "integers([one.sample_index for one in sequences])",
        "integers(list(range(len(sequences))))",
        "§5: noise is keyed by seed, position and sample, not by the row of the step",
    ),
    Mutation(
        "noise_by_tokens_of_the_output",
        _VERIFIER,
        "integers([one.position for one in sequences])",
        "integers([len(one.token_ids) for one in sequences])",
        "§5: noise is keyed by the position in the sequence, so that a resumed request goes on alike",
    ),
    Mutation(
        "prompt_rows_in_reverse",
        _INPUTS,
        "np.concatenate((wanted, more_rows))",
        "np.concatenate((wanted, more_rows[::-1]))",
        "§4.2: logprobs of a prompt belong to its rows in order",
    ),
    Mutation(
        "slot_1_used_for_scratch",
        _TRANSFORMER,
        "        x = hyper_connection_collapse(rows.h, rows.pre)\n        return fp32_linear(",
        "        x = hyper_connection_collapse(rows.h, rows.pre)\n"
        "        caches.rings[-1].codes[caches.geometry.ring : caches.geometry.ring + 1] = 0\n"
        "        caches.rings[0].codes[caches.geometry.ring : caches.geometry.ring + 1] = 0\n"
        "        return fp32_linear(",
        "§6.6: nothing writes to a slot but its own request's rows",
    ),
)

CUDA = (
    Mutation(
        "graph_is_not_replayed",
        _CAPTURED,
        "        graph.replay()\n",
        "",
        "§6.6: a step gives what the step that was captured gave",
        backend="cuda",
    ),
    Mutation(
        "graph_of_another_page_table",
        _CAPTURED,
        "*inputs.page_table.shape, len(inputs.sample_rows), inputs.max_position",
        "len(inputs.sample_rows)",
        "§4.1: a graph that was captured for short sequences reads no more than their pages of a long one",
        backend="cuda",
    ),
)

TABLE = (*STATE, *PAGES, *SELECTION_FAULTS, *SUMS, *RESULTS, *CUDA)
