// How the ranks of a data-parallel group agree on the kind of the next step.
// Knows nothing about requests or transport: ballots go in, the group's element-wise minimum comes back, a kind comes out.
//
// Every rank votes at every decision, idle ones too, and decides from the reduced values only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "options.hpp"
#include "step_plan.hpp"

namespace counterpoint {

// Replaces the values by their element-wise minimum over the ranks. Empty: there is one rank.
using Reduction = std::function<void(std::span<std::int64_t>)>;

// What one rank says; after the reduction, what is true of all ranks or of any.
struct Ballot {
    bool wants_prefill = false;  // it has a prompt to start, and the cache is not too full
    bool has_work = false;       // a request is live
    bool can_decode = false;     // a request could take part in a decode step
    bool has_partial = false;    // a chunked prompt is unfinished
    bool is_overdue = false;     // a prompt that could start has waited for max_wait_steps decode steps
};

struct Tally {
    bool all_want_prefill = false;
    Ballot any;
};

// What the choice depends on beside the votes; equal on all ranks.
struct StepHistory {
    std::int64_t decodes_since_prefill = 0;
    std::int64_t prefills_since_decode = 0;
};

Tally count_votes(const Ballot& mine, const Reduction& reduce);

// The second vote, after a positive first: true if no rank found anything to prefill.
bool all_are_empty(bool mine_is_empty, const Reduction& reduce);

StepKind choose_kind(const Tally& tally, const StepHistory& history, const SchedulerOptions& options);

}  // namespace counterpoint
