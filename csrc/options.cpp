// See options.hpp.
#include "options.hpp"

#include <limits>
#include <stdexcept>
#include <string>

namespace counterpoint {

namespace {

constexpr std::int64_t LARGEST = std::numeric_limits<std::int32_t>::max() / 2;  // plans hold 32-bit numbers

void require(bool holds, const char* name, std::int64_t value, const std::string& law) {
    if (!holds) {
        throw std::invalid_argument(std::string(name) + "=" + std::to_string(value) + ": must be " + law);
    }
}

void require_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
    require(value >= low && value <= high, name, value, "in " + std::to_string(low) + " .. " + std::to_string(high));
}

}  // namespace

void SchedulerOptions::validate() const {
    require_range("num_pages", num_pages, 2, LARGEST);
    require_range("nextn", nextn, 0, 1024);
    require_range("page_size", page_size, nextn + 1, LARGEST);
    require_range("num_slots", num_slots, 2, LARGEST);
    require_range("max_num_seqs", max_num_seqs, 1, LARGEST / (nextn + 1));
    require_range("chunk_grid", chunk_grid, 1, LARGEST);
    require_range("max_num_batched_tokens", max_num_batched_tokens, 1, LARGEST);
    require(max_num_batched_tokens >= max_num_seqs * (nextn + 1), "max_num_batched_tokens", max_num_batched_tokens,
            "at least max_num_seqs * (nextn + 1) = " + std::to_string(max_num_seqs * (nextn + 1)));
    require(max_num_batched_tokens >= chunk_grid, "max_num_batched_tokens", max_num_batched_tokens,
            "at least chunk_grid = " + std::to_string(chunk_grid));
    require_range("max_model_len", max_model_len, 2, LARGEST - nextn - 1);
    require_range("max_consecutive_prefills", max_consecutive_prefills, 1, LARGEST);
    require_range("max_in_flight", max_in_flight, 1, 2);
    require_range("prefill_all_interval", prefill_all_interval, 1, LARGEST);
    require_range("prefill_any_interval", prefill_any_interval, 1, LARGEST);
    require_range("max_wait_steps", max_wait_steps, 1, LARGEST);
    require(stall_limit > prefill_any_interval, "stall_limit", stall_limit,
            "above prefill_any_interval = " + std::to_string(prefill_any_interval));
    if (!(max_cache_usage > 0.0 && max_cache_usage <= 1.0)) {
        throw std::invalid_argument("max_cache_usage=" + std::to_string(max_cache_usage) + ": must be above 0 and at most 1");
    }
}

}  // namespace counterpoint
