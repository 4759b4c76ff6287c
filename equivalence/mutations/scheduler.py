"""Faults of check `scheduler`: the C++ core with one rule broken at a time.

Each is a fault that a scheduler was seen to have, or a slip of the hand. Knows the text of `csrc/`; `native.py` builds
and judges them.
"""

from __future__ import annotations

from equivalence.mutations.engine import Mutation

SELECTION: tuple[str, ...] = ()

_PAGES = "csrc/page_manager.cpp"
_DOOR = "csrc/requests.cpp"
_PLANNING = "csrc/planning.cpp"
_COMMIT = "csrc/commit.cpp"
_VOTE = "csrc/vote.cpp"
_BUDGET = "csrc/verification_budget.cpp"

MEMORY = (
    Mutation(
        "forgotten_decref",
        _PAGES,
        "if (--references_[static_cast<std::size_t>(page)] == 0) {",
        "if (page != pages.back() && --references_[static_cast<std::size_t>(page)] == 0) {",
        "I1: the last page of a released request is never free again",
    ),
    Mutation(
        "page_0_handed_out",
        _PAGES,
        "page = num_pages - 1; page >= 1; --page",
        "page = num_pages - 1; page >= 0; --page",
        "I2: page 0 is reserved",
    ),
    Mutation(
        "released_before_the_fence",
        _DOOR,
        "if (request.last_step > committed_) {",
        "if (false) {",
        "I4: a step in flight may still write the pages",
    ),
    Mutation(
        "fence_one_step_early",
        _DOOR,
        "Deferred held{launched_,",
        "Deferred held{committed_ + 1,",
        "I4: the newest step in flight may still write the pages",
    ),
    Mutation(
        "slot_not_restored",
        _DOOR,
        "slots_.release(held.slot);",
        "",
        "I6: a slot is lost with every request",
    ),
    Mutation(
        "lifetime_without_drafts",
        _DOOR,
        "sequence_limit(prompt_length, max_tokens) + options_.nextn + 1)",
        "sequence_limit(prompt_length, max_tokens))",
        "I13: a request that can never finish is admitted",
    ),
    Mutation(
        "room_without_drafts",
        _PLANNING,
        "return pages_.pages_for(std::min(longest - 1, request.limit) + options_.nextn + 1);",
        "return pages_.pages_for(std::min(longest - 1, request.limit) + 1);",
        "I7: drafts are written past the last page",
    ),
    Mutation(
        "pages_beyond_the_limit",
        _PLANNING,
        "std::min(longest - 1, request.limit) + options_",
        "longest - 1 + options_",
        "I7: a request never needs more pages than its lifetime",
    ),
)

LEAVING = (
    Mutation(
        "abort_of_a_waiting_request_ignored",
        _DOOR,
        "if (request.state == RequestState::WAITING) {\n        waiting_.erase(request.arrival);",
        "if (request.state == RequestState::WAITING) {\n        return true;",
        "I20: an aborted request runs",
    ),
    Mutation(
        "lost_zombie",
        _COMMIT,
        "if (request == nullptr) {\n            continue;",
        "if (request == nullptr) {\n            appended[i] = result.counts[i];\n            continue;",
        "I15: the row of a dead request appends nothing",
    ),
    Mutation(
        "preempted_request_at_the_back",
        _DOOR,
        "waiting_.emplace(request.arrival, &request);",
        "request.arrival = ++arrivals_;\n    waiting_.emplace(request.arrival, &request);",
        "I14: a preempted request comes back first",
    ),
    Mutation(
        "preemption_keeps_progress",
        _DOOR,
        "    request.computed = 0;\n",
        "",
        "I14: a preempted request is computed again from its first position",
    ),
    Mutation(
        "oldest_evicted",
        _PLANNING,
        "        preempt(*running_.back());\n        ++num_preemptions_;",
        "        const auto others = running_.begin() + static_cast<std::ptrdiff_t>(index) + 1;\n"
        "        std::rotate(others, others + 1, running_.end());\n"
        "        preempt(*running_.back());\n        ++num_preemptions_;",
        "I14: the most recently admitted is preempted, not the oldest of those behind",
    ),
    Mutation(
        "pending_frees_not_counted",
        _PLANNING,
        "while (pages_.num_free() + deferred_.num_pages() < shortage",
        "while (pages_.num_free() < shortage",
        "preemption stops once free and deferred pages suffice",
    ),
    Mutation(
        "failed_step_half_forgotten",
        _COMMIT,
        "while (!running_.empty()) {\n        preempt(",
        "if (!running_.empty()) {\n        preempt(",
        "after a failed step no page can be trusted",
    ),
)

TOKENS = (
    Mutation(
        "accepted_off_by_one",
        _COMMIT,
        "tokens.begin(), tokens.end());\n    request.computed",
        "tokens.begin(), tokens.end() - (tokens.size() > 1 ? 1 : 0));\n    request.computed",
        "I15: every accepted token is appended",
    ),
    Mutation(
        "promise_not_taken_back",
        _COMMIT,
        "request.most_in_flight -= 1 + row.drafts;",
        "request.most_in_flight -= 1;",
        "I18: rejected drafts give their positions back",
    ),
    Mutation(
        "draft_past_the_limit",
        _PLANNING,
        "request.limit - request.least_length() - 1;",
        "request.limit - request.least_length();",
        "I15: never past max_tokens",
    ),
    Mutation(
        "drafts_by_the_longest_length",
        _PLANNING,
        "request.limit - request.least_length() - 1;",
        "std::max<std::int64_t>(request.limit - request.most_length() - 1, 0);",
        "I22: the drafts of a request do not depend on how late the host learns its length",
    ),
    Mutation(
        "last_token_prefilled_again",
        _PLANNING,
        "const std::int64_t remaining = request.prefill_length()",
        "const std::int64_t remaining = request.length()",
        "I14: a request that comes back samples nothing in its prefill, its last token begins a block",
    ),
    Mutation(
        "drafts_of_a_resumed_request_lost",
        _COMMIT,
        "if (request.steps_in_flight == 0) {",
        "if (request.steps_in_flight == 0 && row.sampled) {",
        "I22: a block after a preemption is the block it would have been",
    ),
    Mutation(
        "stale_row_on_the_host",
        _PLANNING,
        "on_host ? -1 : static_cast<std::int32_t>(request.last_index)",
        "on_host ? -1 : 0",
        "I19: the device reads the results of another request",
    ),
    Mutation(
        "slot_not_zeroed",
        _PLANNING,
        "request.computed == 0,",
        "false,",
        "I23: the ring of the last owner is visible",
    ),
)

ORDER = (
    Mutation(
        "budget_plus_one",
        _PLANNING,
        "std::int64_t budget = options_.max_num_batched_tokens;",
        "std::int64_t budget = options_.max_num_batched_tokens + 1;",
        "I16: rows within the budget",
    ),
    Mutation(
        "chunk_off_the_grid",
        _PLANNING,
        "(request.computed + budget) / options_.chunk_grid * options_.chunk_grid;",
        "request.computed + budget;",
        "a chunk ends on the grid",
    ),
    Mutation(
        "prefill_beside_a_step_in_flight",
        _PLANNING,
        "if (!flights_.empty()) {\n            return nullptr;",
        "if (false) {\n            return nullptr;",
        "what is in flight is committed before a prefill",
    ),
    Mutation(
        "full_cache_ignored",
        _PLANNING,
        "return !running_.empty() && used > ",
        "return running_.size() > 99 && used > ",
        "nothing is admitted while the cache is fuller than allowed",
    ),
    Mutation(
        "page_to_spare_forgotten",
        _PLANNING,
        "pages_.num_free() >= need + num_running() &&",
        "pages_.num_free() >= need &&",
        "a newcomer leaves a page to every running request",
    ),
    Mutation(
        "overdue_head_forgotten",
        _PLANNING,
        "head_waited_ = waiting_.empty() ? 0 : head_waited_ + 1;",
        "head_waited_ = 0;",
        "I11: a head that waits too long goes first",
    ),
    Mutation(
        "decode_starved",
        _VOTE,
        "history.prefills_since_decode >= options.max_consecutive_prefills",
        "history.prefills_since_decode > options.max_consecutive_prefills",
        "I11: prefill steps in a row are bounded",
    ),
)

VOTES = (
    Mutation(
        "second_vote_skipped",
        _PLANNING,
        "if (!all_are_empty(!can_prefill(), reduce_)) {",
        "if (reduce_ || can_prefill()) {",
        "I10: a prefill step has rows on some rank",
    ),
    Mutation(
        "second_vote_local",
        _VOTE,
        "return votes[0] == 1;",
        "return mine_is_empty;",
        "I9: a rank decides from the reduced value only",
    ),
    Mutation(
        "idle_rank_leaves",
        _VOTE,
        ".has_work = votes[2] == 0,",
        ".has_work = mine.has_work,",
        "I8: a rank without work votes and goes along",
    ),
    Mutation(
        "all_taken_for_any",
        _VOTE,
        "return prefill_if(tally.all_want_prefill);",
        "return prefill_if(tally.any.wants_prefill);",
        "the frequent vote needs every rank",
    ),
    Mutation(
        "any_vote_late",
        _VOTE,
        "decodes % options.prefill_any_interval == 0",
        "decodes % (options.prefill_any_interval + 1) == 0",
        "I11: a schedulable head waits one interval at most",
    ),
)

BUDGET = (
    Mutation(
        "tie_to_the_larger_budget",
        _BUDGET,
        "if (rate > best_rate) {",
        "if (rate >= best_rate) {",
        "of budgets of the same rate the least is taken",
    ),
    Mutation(
        "candidate_beyond_most",
        _BUDGET,
        "static_cast<std::size_t>(most[r]))) {",
        "static_cast<std::size_t>(slots))) {",
        "I16: a draft that a request does not have is no candidate",
    ),
    Mutation(
        "budget_stops_at_the_first_fall",
        _BUDGET,
        "            best_rate = rate;\n        }",
        "            best_rate = rate;\n        } else if (rate < best_rate) {\n            break;\n        }",
        "the whole curve is searched: a dearer step may pay again",
    ),
    Mutation(
        "hopeless_drafts_counted",
        _BUDGET,
        "if (static_cast<double>(survival) >= LEAST_SURVIVAL) {",
        "if (survival > 0.0F) {",
        "drafts below the least survival are never verified",
    ),
)

TABLE = MEMORY + LEAVING + TOKENS + ORDER + VOTES + BUDGET
