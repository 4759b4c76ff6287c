// See vote.hpp.
#include "vote.hpp"

namespace counterpoint {

namespace {

// A minimum is an AND of 0 / 1; of inverted values it is an OR.
std::int64_t inverted(bool value) { return value ? 0 : 1; }

}  // namespace

Tally count_votes(const Ballot& mine, const Reduction& reduce) {
    std::array<std::int64_t, 6> votes{mine.wants_prefill ? 1 : 0,  inverted(mine.wants_prefill), inverted(mine.has_work),
                                      inverted(mine.can_decode),   inverted(mine.has_partial),   inverted(mine.is_overdue)};
    if (reduce) {
        reduce(votes);
    }
    return {.all_want_prefill = votes[0] == 1,
            .any = {.wants_prefill = votes[1] == 0,
                    .has_work = votes[2] == 0,
                    .can_decode = votes[3] == 0,
                    .has_partial = votes[4] == 0,
                    .is_overdue = votes[5] == 0}};
}

bool all_are_empty(bool mine_is_empty, const Reduction& reduce) {
    std::array<std::int64_t, 1> votes{mine_is_empty ? 1 : 0};
    if (reduce) {
        reduce(votes);
    }
    return votes[0] == 1;
}

StepKind choose_kind(const Tally& tally, const StepHistory& history, const SchedulerOptions& options) {
    const auto prefill_if = [](bool condition) { return condition ? StepKind::PREFILL : StepKind::DECODE; };
    const bool can_prefill = tally.any.wants_prefill || tally.any.has_partial;
    if (!tally.any.can_decode) {
        return prefill_if(can_prefill);
    }
    if (history.prefills_since_decode >= options.max_consecutive_prefills) {
        return StepKind::DECODE;
    }
    if (tally.any.has_partial || tally.any.is_overdue) {
        return StepKind::PREFILL;
    }
    const std::int64_t decodes = history.decodes_since_prefill;
    if (decodes > 0 && decodes % options.prefill_any_interval == 0) {
        return prefill_if(tally.any.wants_prefill);
    }
    if (decodes % options.prefill_all_interval == 0) {
        return prefill_if(tally.all_want_prefill);
    }
    return StepKind::DECODE;
}

}  // namespace counterpoint
