// The scheduler's ledger: what a finished step changes. See scheduler.hpp.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "scheduler.hpp"

namespace counterpoint {

namespace {

// The message is made only when it is needed: these checks run for every row of every step.
template <typename Message>
void require(bool holds, const Message& message) {
    if (!holds) [[unlikely]] {
        throw std::invalid_argument(message());
    }
}

std::string at(const char* name, std::size_t index, std::int64_t value) {
    return std::string(name) + "[" + std::to_string(index) + "]=" + std::to_string(value) + ": ";
}

template <typename T>
void require_length(const char* name, std::span<const T> values, std::size_t length) {
    require(values.size() == length, [&] {
        return std::string(name) + ": has " + std::to_string(values.size()) + " elements, must have " + std::to_string(length);
    });
}

void require_range(const char* name, std::size_t index, std::int64_t value, std::int64_t least, std::int64_t most) {
    require(value >= least && value <= most, [&] {
        return at(name, index, value) + "must be in " + std::to_string(least) + " .. " + std::to_string(most);
    });
}

void require_tokens(const char* name, std::span<const std::int64_t> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        require(tokens[i] >= 0, [&] { return at(name, i, tokens[i]) + "token ids must not be negative"; });
    }
}

std::size_t sum(std::span<const std::int32_t> counts) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
}

}  // namespace

const Flight& Scheduler::oldest_flight(std::int64_t step_id) const {
    const std::string name = "step_id=" + std::to_string(step_id) + ": ";
    require(!flights_.empty(), [&] { return name + "no step is in flight"; });
    const std::int64_t oldest = flights_.front().step_id;
    require(oldest == step_id, [&] { return name + "the oldest step in flight is " + std::to_string(oldest); });
    return flights_.front();
}

void Scheduler::check_result(const Flight& flight, const StepResult& result) const {
    const std::size_t num_requests = flight.rows.size();
    require_length("request_ids", result.request_ids, num_requests);
    require_length("counts", result.counts, num_requests);
    require_length("finished", result.finished, num_requests);
    for (std::size_t i = 0; i < num_requests; ++i) {
        const FlightRow& row = flight.rows[i];
        require(result.request_ids[i] == row.request_id, [&] {
            return at("request_ids", i, result.request_ids[i]) + "the plan has request " + std::to_string(row.request_id) + " there";
        });
        const Request* request = find_live(row);
        const bool must_yield = request != nullptr && row.sampled && result.finished[i] == 0;
        std::int64_t most = 1 + row.drafts;
        if (request != nullptr) {
            most = row.sampled ? std::min(most, request->limit - request->length()) : 0;
        }
        require_range("counts", i, result.counts[i], must_yield ? 1 : 0, most);
    }
    require_length("tokens", result.tokens, sum(result.counts));
    require_tokens("tokens", result.tokens);
    if (!result.draft_counts.empty() || !result.draft_tokens.empty()) {
        require_length("draft_counts", result.draft_counts, num_requests);
        for (std::size_t i = 0; i < num_requests; ++i) {
            require_range("draft_counts", i, result.draft_counts[i], 0, options_.nextn);
        }
        require_length("draft_tokens", result.draft_tokens, sum(result.draft_counts));
        require_tokens("draft_tokens", result.draft_tokens);
    }
}

std::vector<std::int32_t> Scheduler::commit(std::int64_t step_id, const StepResult& result) {
    check_result(oldest_flight(step_id), result);
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    committed_ = step_id;
    calls_without_progress_ = flight.rows.empty() ? calls_without_progress_ : 0;

    std::vector<std::int32_t> appended(flight.rows.size(), 0);
    std::size_t token = 0;
    std::size_t draft = 0;
    bool any_ended = false;
    for (std::size_t i = 0; i < flight.rows.size(); ++i) {
        const FlightRow& row = flight.rows[i];
        const auto tokens = result.tokens.subspan(token, static_cast<std::size_t>(result.counts[i]));
        token += tokens.size();
        const std::size_t num_drafts = result.draft_counts.empty() ? 0 : static_cast<std::size_t>(result.draft_counts[i]);
        const auto drafts = result.draft_tokens.subspan(draft, num_drafts);
        draft += num_drafts;
        Request* request = find_live(row);
        if (request == nullptr) {
            continue;  // a zombie row
        }
        appended[i] = result.counts[i];
        settle(*request, row, tokens, drafts);
        if (result.finished[i] != 0 || request->length() >= request->limit) {
            request->state = RequestState::ENDED;
            release_resources(*request);
            any_ended = true;
        }
    }
    if (any_ended) {
        std::erase_if(running_, [this](const Request* request) {
            return request->state == RequestState::ENDED && requests_.erase(request->id) > 0;
        });
    }
    deferred_.settle(committed_, pages_, slots_);
    return appended;
}

void Scheduler::settle(Request& request, const FlightRow& row, std::span<const std::int64_t> tokens,
                       std::span<const std::int64_t> drafts) {
    if (request.state == RequestState::PREFILL) {
        request.computed = row.end;
        if (row.end < request.prefill_length()) {
            return;
        }
        request.state = RequestState::RUNNING;
    }
    if (row.sampled) {
        request.steps_in_flight -= 1;
        request.most_in_flight -= 1 + row.drafts;
    }
    request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
    request.computed = request.length() - 1;
    if (request.steps_in_flight == 0) {  // else these follow a token that the step in flight has already replaced
        request.drafts.assign(drafts.begin(), drafts.end());
    }
}

void Scheduler::discard(std::int64_t step_id) {
    oldest_flight(step_id);
    flights_.pop_front();
    committed_ = step_id;
    while (!running_.empty()) {
        preempt(*running_.back());
    }
    deferred_.settle(committed_, pages_, slots_);
}

}  // namespace counterpoint
