// The flat arrays of one forward step. R requests, N rows; see optimized/_core.pyi for every field.
// Knows nothing about the scheduler: once made, a plan belongs to its holder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace counterpoint {

enum class StepKind { PREFILL, DECODE };

inline const char* name_of(StepKind kind) { return kind == StepKind::PREFILL ? "prefill" : "decode"; }

struct StepPlan {
    StepKind kind = StepKind::DECODE;
    std::int64_t step_id = 0;
    std::vector<std::int64_t> request_ids;   // [R]
    std::vector<std::int32_t> slots;         // [R]
    std::vector<std::int32_t> query_start;   // [R + 1]
    std::vector<std::int64_t> positions;     // [N]
    std::vector<std::int64_t> tokens;        // [N]
    std::vector<std::int32_t> kv_lens;       // [R]
    std::vector<std::int32_t> page_table;    // [R, table_width]
    std::vector<std::int32_t> sample_rows;   // [R]
    std::vector<std::uint8_t> fresh;         // [R]
    std::vector<std::int32_t> replay_starts; // [R]
    std::vector<std::int32_t> previous_rows; // [R]
    std::int64_t table_width = 1;

    explicit StepPlan(StepKind kind_, std::int64_t step_id_) : kind(kind_), step_id(step_id_), query_start{0} {}

    std::int64_t num_requests() const { return static_cast<std::int64_t>(request_ids.size()); }
    std::int64_t num_rows() const { return query_start.back(); }

    // Room for that many requests, and one row each.
    void reserve(std::size_t requests) {
        for (auto* numbers : {&request_ids, &positions, &tokens}) {
            numbers->reserve(requests);
        }
        for (auto* numbers : {&slots, &query_start, &kv_lens, &sample_rows, &replay_starts, &previous_rows}) {
            numbers->reserve(requests + 1);
        }
        fresh.reserve(requests);
    }

    // Rows for positions first .. first + tokens.size() - 1; the caller fills nothing else but the page table.
    void append(std::int64_t id, std::int32_t slot, std::int64_t first, std::span<const std::int64_t> row_tokens,
                std::int32_t sample_row, bool is_fresh, std::int32_t replay_start, std::int32_t previous_row) {
        const auto rows = static_cast<std::int64_t>(row_tokens.size());
        request_ids.push_back(id);
        slots.push_back(slot);
        query_start.push_back(static_cast<std::int32_t>(num_rows() + rows));
        for (std::int64_t i = 0; i < rows; ++i) {
            positions.push_back(first + i);
        }
        tokens.insert(tokens.end(), row_tokens.begin(), row_tokens.end());
        kv_lens.push_back(static_cast<std::int32_t>(first + rows));
        sample_rows.push_back(sample_row);
        fresh.push_back(is_fresh ? 1 : 0);
        replay_starts.push_back(replay_start);
        previous_rows.push_back(previous_row);
    }
};

}  // namespace counterpoint
