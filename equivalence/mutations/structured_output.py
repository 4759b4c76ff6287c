"""Faults of check `structured_output`: ways out of a language, and ways in which a grammar harms others.

Knows the text of `optimized/`; the engine plants them. A matcher that is not built again after a preemption is no fault
here: the host's one has read all committed ids already, and goes on from there.
"""

from __future__ import annotations

from equivalence.mutations.engine import Mutation

SELECTION = ("00004", "00005", "00006", "00008", "00009", "00012")
"""Cases that catch the faults: every number of drafts, through preemptions and chunks."""

_HOSTILE = ("hostile",)

_MATCHER = "optimized/engine/structured/matcher.py"
_REQUESTS = "optimized/engine/structured/requests.py"
_SEQUENCE = "optimized/engine/sequence.py"
_ENGINE = "optimized/engine/engine.py"

TABLE = (
    Mutation(
        "bonus_row_unmasked",
        _REQUESTS,
        "            return sequence.matcher.words_through(block.drafts)\n",
        "            words = sequence.matcher.words_through(block.drafts).clone()\n"
        "            words[-1] = -1\n"
        "            return words\n",
        "§5.5: the row after the last draft is masked like every other",
    ),
    Mutation(
        "first_mask_for_the_whole_block",
        _MATCHER,
        "                self._fill(masks, place + 1)\n",
        "                masks[place + 1] = masks[0]\n",
        "§5.5: every row has the mask of the drafts before it",
    ),
    Mutation(
        "mask_of_the_row_before",
        _MATCHER,
        "                self._fill(masks, place + 1)\n",
        "                masks[place + 1] = masks[place]\n                self._fill(masks, place)\n",
        "§5.5: every row has the mask of the drafts before it",
    ),
    Mutation(
        "rollback_off_by_one",
        _MATCHER,
        "                self._matcher.rollback(taken)\n",
        "                self._matcher.rollback(taken - 1)\n",
        "§5.5: after a block has been looked through, the matcher stands where it stood",
    ),
    Mutation(
        "rollback_forgotten",
        _MATCHER,
        "            if taken:\n",
        "            if not masks.any():\n",
        "§5.5: after a block has been looked through, the matcher stands where it stood",
    ),
    Mutation(
        "rebuilt_from_nothing_after_preemption",
        _SEQUENCE,
        "self.matcher.restart(self.token_ids)",
        "self.matcher.restart(())",
        "§5.5: the matcher is built again from the committed ids",
        ("00005", "00009", "00013", "00017", "00021", "00025"),
    ),
    Mutation(
        "rebuilt_without_the_last_token",
        _SEQUENCE,
        "self.matcher.restart(self.token_ids)",
        "self.matcher.restart(self.token_ids[:-1])",
        "§5.5: the matcher is built again from all committed ids",
        ("00005", "00009", "00013", "00017", "00021", "00025"),
    ),
    Mutation(
        "stop_ids_anywhere",
        _MATCHER,
        "self._set(masks[row], token, complete and token in self._stop_ids)",
        "self._set(masks[row], token, token in self._stop_ids)",
        "§5.5: a text ends where it is complete",
    ),
    Mutation(
        "stop_ids_nowhere",
        _MATCHER,
        "self._set(masks[row], token, complete and token in self._stop_ids)",
        "self._set(masks[row], token, False)",
        "§5.5: a text that is complete may end",
        ("0000", "0001", "0002"),
    ),
    Mutation(
        "complete_text_at_a_dead_end",
        _SEQUENCE,
        "            if matcher.complete:\n",
        "            if matcher.complete and not self.request.params.ignore_eos:\n",
        "§5.5: a language that is used up ends its text",
        ("0000", "0001", "0002"),
    ),
    Mutation(
        "end_of_the_language_overlooked",
        _SEQUENCE,
        "if self.finish_reason is None and matcher.exhausted:",
        "if self.finish_reason is None and False:",
        "§5.5: a language that is used up ends its text",
        ("0000", "0001", "0002"),
    ),
    Mutation(
        "dead_end_behind_the_end",
        _ENGINE,
        "            if sequence.finish_reason is not None:\n                break\n            error =",
        "            if sequence.finish_reason and not one.error:\n                break\n            error =",
        "§1.1: what a block holds beyond the end of its sequence is dropped",
        ("00004", "00005", "00009"),
    ),
    Mutation(
        "stop_id_in_the_text",
        "optimized/engine/output_processor.py",
        "visible = sequence.token_ids[:-1] if sequence.ended_by_id else sequence.token_ids",
        "visible = sequence.token_ids",
        "§5.4: the id that ends a text is no part of it",
        ("00037", "00038", "00039"),
    ),
    Mutation(
        "min_tokens_without_drafts",
        "optimized/engine/adjustments.py",
        "early = min(len(block), params.min_tokens - len(sequence.token_ids))",
        "early = len(block) if len(sequence.token_ids) < params.min_tokens else 0",
        "§5.2: min_tokens counts the drafts before a row",
        ("00024", "00025", "00026"),
    ),
    Mutation(
        "masks_of_other_requests",
        _REQUESTS,
        "torch.cat([_mask(one, some.words) for one in blocks])",
        "torch.cat([_mask(one, some.words) for one in blocks]).flip(0)",
        "§5.5: a mask belongs to the rows of its request",
    ),
    Mutation(
        "choices_not_escaped",
        "optimized/engine/structured/language.py",
        'char < " " or char in \'"\\\\\\x7f\'',
        "char < \" \" or char in '\\\\\\x7f'",
        "§5.5: a choice is a text, whatever its characters mean in a grammar",
        ("00000", "00001", "00004", "00005"),
    ),
    Mutation(
        "unknown_keywords_ignored",
        "optimized/engine/structured/json_schema.py",
        "        if name in enforced:\n            continue\n",
        "        if name in enforced or name in NEVER_ENFORCED:\n            continue\n",
        "§5.5: what would be ignored silently is refused by name",
        _HOSTILE,
    ),
    Mutation(
        "failed_grammars_run",
        _ENGINE,
        "if one.job.grammar is not None and all(sequence.error is None for sequence in one.sequences):",
        "if one.job.grammar is None or all(sequence.error is None for sequence in one.sequences):",
        "§5.5: a grammar that fails costs nobody a step",
        _HOSTILE,
    ),
)
