// The scheduler's door: how requests come in and leave. See scheduler.hpp.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "scheduler.hpp"

namespace counterpoint {

namespace {

std::string named(const char* name, std::int64_t value) { return std::string(name) + "=" + std::to_string(value) + ": "; }

void require_lengths(std::int64_t prompt_length, std::int64_t max_tokens) {
    if (prompt_length < 1) {
        throw std::invalid_argument(named("prompt_len", prompt_length) + "must be at least 1");
    }
    if (max_tokens < 1) {
        throw std::invalid_argument(named("max_tokens", max_tokens) + "must be at least 1");
    }
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, Reduction reduce)
    : options_((options.validate(), options)), reduce_(std::move(reduce)), pages_(options.num_pages, options.page_size), slots_(options.num_slots),
      by_slot_(static_cast<std::size_t>(options.num_slots), nullptr) {}

std::int64_t Scheduler::sequence_limit(std::int64_t prompt_length, std::int64_t max_tokens) const {
    const std::int64_t prompt = std::min<std::int64_t>(prompt_length, options_.max_model_len);
    return prompt + std::min<std::int64_t>(max_tokens, options_.max_model_len - prompt);
}

std::int64_t Scheduler::lifetime_pages(std::int64_t prompt_length, std::int64_t max_tokens) const {
    require_lengths(prompt_length, max_tokens);
    return pages_.pages_for(sequence_limit(prompt_length, max_tokens) + options_.nextn + 1);
}

std::string Scheduler::explain_never(std::int64_t prompt_length, std::int64_t max_tokens) const {
    require_lengths(prompt_length, max_tokens);
    if (prompt_length >= options_.max_model_len) {
        return "the prompt has " + std::to_string(prompt_length) + " tokens; at most " +
               std::to_string(options_.max_model_len - 1) + " are accepted (max_model_len " +
               std::to_string(options_.max_model_len) + ", prompt and output together)";
    }
    const std::int64_t need = lifetime_pages(prompt_length, max_tokens);
    if (pages_.can_allocate(need) == Admission::NEVER) {
        return "the request may grow to " + std::to_string(sequence_limit(prompt_length, max_tokens)) +
               " tokens, which with room for nextn + 1 = " + std::to_string(options_.nextn + 1) + " more takes " +
               std::to_string(need) + " pages of " + std::to_string(options_.page_size) + " tokens; the pool has " +
               std::to_string(pages_.num_usable());
    }
    return "";
}

Admission Scheduler::add(std::int64_t id, std::span<const std::int64_t> prompt, std::int64_t max_tokens,
                         std::int64_t replay_start) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    if (id < 0) {
        throw std::invalid_argument(named("request_id", id) + "must not be negative");
    }
    if (requests_.contains(id)) {
        throw std::invalid_argument(named("request_id", id) + "a live request has this id");
    }
    if (replay_start < 0 || replay_start > length) {
        throw std::invalid_argument(named("replay_start", replay_start) + "must be in 0 .. " + std::to_string(length));
    }
    const auto negative = std::ranges::find_if(prompt, [](std::int64_t token) { return token < 0; });
    if (negative != prompt.end()) {
        throw std::invalid_argument(named("prompt", *negative) + "token ids must not be negative");
    }
    if (!explain_never(length, max_tokens).empty()) {
        return Admission::NEVER;
    }
    auto request = std::make_unique<Request>();
    request->id = id;
    request->arrival = ++arrivals_;
    request->prompt_length = length;
    request->limit = sequence_limit(length, max_tokens);
    request->replay_start = static_cast<std::int32_t>(replay_start);
    request->tokens.assign(prompt.begin(), prompt.end());
    calls_without_progress_ = 0;
    waiting_.emplace(request->arrival, request.get());
    requests_.emplace(id, std::move(request));
    return Admission::OK;
}

bool Scheduler::abort(std::int64_t id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) {
        return false;
    }
    Request& request = *found->second;
    if (request.state == RequestState::WAITING) {
        waiting_.erase(request.arrival);
    } else {
        std::erase(running_, &request);
        release_resources(request);
    }
    requests_.erase(found);
    calls_without_progress_ = 0;
    return true;
}

void Scheduler::release_resources(Request& request) {
    by_slot_[static_cast<std::size_t>(request.slot)] = nullptr;
    Deferred held{launched_, std::move(request.pages), request.slot};
    request.pages.clear();
    request.slot = 0;
    if (request.last_step > committed_) {
        deferred_.push(std::move(held));
    } else {
        pages_.release(held.pages);
        slots_.release(held.slot);
    }
}

void Scheduler::preempt(Request& request) {
    if (running_.empty() || running_.back() != &request) {
        throw std::logic_error("only the request most recently admitted is preempted");
    }
    running_.pop_back();
    release_resources(request);
    request.state = RequestState::WAITING;
    request.drafts.clear();
    request.computed = 0;
    request.admission = 0;
    request.steps_in_flight = 0;
    request.most_in_flight = 0;
    waiting_.emplace(request.arrival, &request);
}

Request* Scheduler::find_live(const FlightRow& row) const {
    Request* request = by_slot_[static_cast<std::size_t>(row.slot)];
    return request != nullptr && request->admission == row.admission ? request : nullptr;
}

const Request& Scheduler::request(std::int64_t id) const {
    const auto found = requests_.find(id);
    if (found == requests_.end()) {
        throw std::invalid_argument(named("request_id", id) + "no live request has this id");
    }
    return *found->second;
}

std::vector<std::int64_t> Scheduler::request_ids() const {
    std::vector<std::int64_t> ids;
    ids.reserve(requests_.size());
    for (const Request* request : running_) {
        ids.push_back(request->id);
    }
    for (const auto& [arrival, request] : waiting_) {
        ids.push_back(request->id);
    }
    return ids;
}

}  // namespace counterpoint
