// What a scheduler is told once, at construction, and the laws between these numbers.
// Knows nothing about where the numbers come from.
#pragma once

#include <cstdint>

namespace counterpoint {

struct SchedulerOptions {
    std::int64_t num_pages = 0;
    std::int64_t page_size = 0;
    std::int64_t num_slots = 0;
    std::int64_t max_num_seqs = 0;
    std::int64_t max_num_batched_tokens = 0;
    std::int64_t max_model_len = 0;
    std::int64_t nextn = 0;
    std::int64_t chunk_grid = 1;
    std::int64_t max_consecutive_prefills = 8;
    double max_cache_usage = 0.9;
    std::int64_t max_in_flight = 1;
    std::int64_t prefill_all_interval = 1;
    std::int64_t prefill_any_interval = 1;
    std::int64_t max_wait_steps = 500;
    std::int64_t stall_limit = 10'000;

    // Throws std::invalid_argument naming argument, value and law.
    void validate() const;
};

}  // namespace counterpoint
