// One request as the scheduler sees it: tokens, lengths and what it holds.
// Knows nothing about sampling, text or the reasons why a request ends.
#pragma once

#include <cstdint>
#include <vector>

namespace counterpoint {

// WAITING holds nothing. PREFILL and RUNNING hold pages and one slot; the KV of a RUNNING request lacks its last token only.
// ENDED lasts for the rest of the commit that ends it.
enum class RequestState { WAITING, PREFILL, RUNNING, ENDED };

inline const char* name_of(RequestState state) {
    switch (state) {
        case RequestState::WAITING: return "waiting";
        case RequestState::PREFILL: return "prefill";
        case RequestState::RUNNING: return "running";
        case RequestState::ENDED: return "ended";
    }
    return "unknown";
}

struct Request {
    std::int64_t id = 0;
    std::int64_t arrival = 0;  // 1, 2, 3, ...: the FCFS order, kept through preemption
    std::int64_t prompt_length = 0;
    std::int64_t limit = 0;  // the sequence ends at this many tokens
    std::int32_t replay_start = 0;

    RequestState state = RequestState::WAITING;
    std::vector<std::int64_t> tokens;  // prompt and committed output
    std::vector<std::int64_t> drafts;  // to be verified by the next decode step; filled by commit
    std::int64_t computed = 0;         // positions whose KV is in the pages, as far as commits have told

    std::int64_t admission = 0;  // a new number at every admission: a row of an older one is a zombie
    std::vector<std::int32_t> pages;
    std::int32_t slot = 0;

    std::int64_t last_step = 0;        // newest step that has rows of this admission
    std::int64_t last_index = -1;      // its index in that step's plan
    std::int64_t steps_in_flight = 0;  // sampled and not committed
    std::int64_t most_in_flight = 0;   // tokens these steps append if every draft is accepted

    std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
    // Positions that prefill steps compute: the prompt, and of a request that comes back all but its last token.
    std::int64_t prefill_length() const { return length() - (length() > prompt_length ? 1 : 0); }
    // Host's bounds on the length once every step in flight is committed; the upper one as if there were no limit.
    std::int64_t most_length() const { return length() + most_in_flight; }
    std::int64_t least_length() const { return length() + steps_in_flight; }
    bool is_ending() const { return least_length() >= limit; }
};

}  // namespace counterpoint
