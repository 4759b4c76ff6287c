// See verification_budget.hpp.
#include "verification_budget.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace counterpoint {

namespace {

constexpr double LEAST_SURVIVAL = 1e-6;  // drafts less likely to be kept are never verified

template <typename T>
[[noreturn]] void refuse(const char* name, std::size_t index, T value, const std::string& law) {
    throw std::invalid_argument(std::string(name) + "[" + std::to_string(index) + "]=" + std::to_string(value) + ": must be " + law);
}

}  // namespace

std::int64_t choose_budget(std::span<const float> survivals, std::int64_t slots, std::span<const std::int32_t> most,
                           std::span<const double> cost) {
    const std::size_t requests = most.size();
    if (cost.size() < requests + 1) {
        throw std::invalid_argument("cost: has " + std::to_string(cost.size()) + " elements, must have one for 0 .. " +
                                    std::to_string(requests) + " rows at least");
    }
    for (std::size_t rows = 1; rows < cost.size(); ++rows) {
        if (!(cost[rows] > 0.0 && std::isfinite(cost[rows]))) {
            refuse("cost", rows, cost[rows], "above 0 and finite");
        }
    }
    // Where survivals are equal, it does not matter here whose they are: only how many are taken.
    std::vector<float> candidates;
    candidates.reserve(survivals.size());
    for (std::size_t r = 0; r < requests; ++r) {
        if (most[r] < 0 || most[r] > slots) {
            refuse("most", r, most[r], "in 0 .. " + std::to_string(slots));
        }
        for (const float survival : survivals.subspan(r * static_cast<std::size_t>(slots), static_cast<std::size_t>(most[r]))) {
            if (!(survival >= 0.0F && survival <= 1.0F)) {
                refuse("survivals", r, survival, "in 0 .. 1");
            }
            if (static_cast<double>(survival) >= LEAST_SURVIVAL) {
                candidates.push_back(survival);
            }
        }
    }
    std::ranges::sort(candidates, std::greater{});
    const std::size_t last = std::min(candidates.size(), cost.size() - 1 - requests);
    std::size_t best = 0;
    double best_rate = 0.0;
    double tokens = static_cast<double>(requests);
    for (std::size_t k = 0; k <= last; ++k) {
        tokens += k > 0 ? static_cast<double>(candidates[k - 1]) : 0.0;
        const double rate = tokens / cost[requests + k];
        if (rate > best_rate) {
            best = k;
            best_rate = rate;
        }
    }
    return static_cast<std::int64_t>(best);
}

}  // namespace counterpoint
