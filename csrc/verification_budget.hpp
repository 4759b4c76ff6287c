// How many drafts a step verifies: the greatest expected tokens per time.
// Knows confidences and the cost of a step; knows nothing about requests, tokens or which drafts are taken.
#pragma once

#include <cstdint>
#include <span>

namespace counterpoint {

// survivals: [most.size(), slots], row after row; most: of each request's drafts only so many, the first, are candidates;
// cost: of a step of 0, 1, 2, ... rows. Throws std::invalid_argument naming the argument.
std::int64_t choose_budget(std::span<const float> survivals, std::int64_t slots, std::span<const std::int32_t> most,
                           std::span<const double> cost);

}  // namespace counterpoint
