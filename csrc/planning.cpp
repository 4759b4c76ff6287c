// The scheduler's choice: the kind of the next step and its rows. See scheduler.hpp.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "scheduler.hpp"

namespace counterpoint {

std::shared_ptr<StepPlan> Scheduler::schedule() {
    if (num_in_flight() >= options_.max_in_flight) {
        throw std::runtime_error("schedule: step " + std::to_string(flights_.front().step_id) +
                                 " must be committed first (max_in_flight=" + std::to_string(options_.max_in_flight) + ")");
    }
    if (!flights_.empty() && flights_.back().kind == StepKind::PREFILL) {
        return nullptr;  // a prefill step is settled before anything else starts
    }
    const bool prefill_turn = consecutive_prefills_ < options_.max_consecutive_prefills || !can_decode();
    if (prefill_turn && wants_prefill()) {
        return flights_.empty() ? plan_prefill() : nullptr;
    }
    if (auto plan = plan_decode()) {
        return plan;
    }
    if (flights_.empty() && !requests_.empty()) {
        throw std::runtime_error("schedule: stalled, nothing is in flight and no request can run\n" + dump());
    }
    return nullptr;
}

bool Scheduler::wants_prefill() const {
    if (!running_.empty() && running_.back()->state == RequestState::PREFILL) {
        return true;
    }
    return !waiting_.empty() && can_admit(*waiting_.begin()->second);
}

bool Scheduler::can_admit(const Request& request) const {
    if (num_running() >= options_.max_num_seqs || !slots_.can_allocate()) {
        return false;
    }
    // Beside its own pages, one more for every running request: else the next decode step would preempt the newcomer.
    const std::int64_t need = pages_.pages_for(request.length() + options_.nextn + 1) + num_running();
    if (pages_.num_free() < need) {
        return false;
    }
    const auto used = static_cast<double>(pages_.num_usable() - pages_.num_free());
    return running_.empty() || used <= options_.max_cache_usage * static_cast<double>(pages_.num_usable());
}

bool Scheduler::can_decode() const {
    return std::ranges::any_of(running_, [](const Request* request) {
        return request->state == RequestState::RUNNING && !request->is_ending();
    });
}

void Scheduler::admit(Request& request) {
    pages_.allocate(pages_.pages_for(request.length() + options_.nextn + 1), request.pages);
    request.slot = slots_.allocate();
    request.admission = ++admissions_;
    request.state = RequestState::PREFILL;
    waiting_.erase(request.arrival);
    running_.push_back(&request);
}

std::int64_t Scheduler::chunk_rows(const Request& request, std::int64_t budget) const {
    const std::int64_t remaining = request.length() - request.computed;
    if (remaining <= budget) {
        return remaining;
    }
    const std::int64_t end = (request.computed + budget) / options_.chunk_grid * options_.chunk_grid;
    return std::max<std::int64_t>(end - request.computed, 0);
}

std::shared_ptr<StepPlan> Scheduler::plan_prefill() {
    auto plan = std::make_shared<StepPlan>(StepKind::PREFILL, launched_ + 1);
    std::int64_t budget = options_.max_num_batched_tokens;
    if (!running_.empty() && running_.back()->state == RequestState::PREFILL) {
        Request& partial = *running_.back();
        const std::int64_t rows = chunk_rows(partial, budget);
        const bool whole = partial.computed + rows == partial.length();
        append_chunk(*plan, partial, rows);
        budget = whole ? budget - rows : 0;
    }
    while (budget > 0 && !waiting_.empty()) {
        Request& head = *waiting_.begin()->second;
        const std::int64_t rows = chunk_rows(head, budget);
        if (rows == 0 || !can_admit(head)) {
            break;
        }
        admit(head);
        append_chunk(*plan, head, rows);
        budget = rows == head.length() ? budget - rows : 0;
    }
    ++consecutive_prefills_;
    launch(*plan);
    return plan;
}

void Scheduler::append_chunk(StepPlan& plan, Request& request, std::int64_t rows) {
    const std::int64_t end = request.computed + rows;
    const bool last = end == request.length();
    const std::span<const std::int64_t> tokens(request.tokens);
    plan.append(request.id, request.slot, request.computed,
                tokens.subspan(static_cast<std::size_t>(request.computed), static_cast<std::size_t>(rows)),
                last ? static_cast<std::int32_t>(plan.num_rows() + rows - 1) : -1, request.computed == 0,
                request.replay_start, -1);
    planned_.rows.push_back({request.id, request.admission, end, 0, last});
    request.last_step = plan.step_id;
    request.last_index = plan.num_requests() - 1;
    if (last) {
        request.steps_in_flight = 1;
        request.most_in_flight = 1;
    }
}

std::shared_ptr<StepPlan> Scheduler::plan_decode() {
    auto plan = std::make_shared<StepPlan>(StepKind::DECODE, launched_ + 1);
    std::int64_t promised = 0;  // pages that older requests of this step wait for
    for (std::size_t index = 0; index < running_.size(); ++index) {
        Request& request = *running_[index];
        if (request.state == RequestState::RUNNING && !request.is_ending() && reserve_decode_pages(index, promised)) {
            append_decode(*plan, request);
        }
    }
    if (plan->num_requests() == 0) {
        return nullptr;
    }
    consecutive_prefills_ = 0;
    launch(*plan);
    return plan;
}

// Pages for the longest this step can make the request. False: it sits out this step (its pages are on their way back
// behind a step in flight) or was itself the one to preempt.
bool Scheduler::reserve_decode_pages(std::size_t index, std::int64_t& promised) {
    Request& request = *running_[index];
    const std::int64_t need = pages_.pages_for(request.most_length() + options_.nextn);
    const std::int64_t missing = need - static_cast<std::int64_t>(request.pages.size());
    if (missing <= 0) {
        return true;
    }
    const std::int64_t shortage = promised + missing;
    while (pages_.num_free() + deferred_.num_pages() < shortage && running_.size() > index + 1) {
        preempt(*running_.back());
        ++num_preemptions_;
    }
    if (promised == 0 && pages_.num_free() >= missing) {
        pages_.allocate(missing, request.pages);
        return true;
    }
    if (pages_.num_free() + deferred_.num_pages() >= shortage) {
        promised = shortage;
        return false;
    }
    if (index == 0) {
        throw std::runtime_error("schedule: the oldest request finds no page though all others are gone\n" + dump());
    }
    preempt(request);
    ++num_preemptions_;
    return false;
}

std::int64_t Scheduler::draft_rows(const Request& request) const {
    const std::int64_t room = request.limit - request.most_length() - 1;  // committed + drafts + 1 stays within the limit
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(request.drafts.size()), 0, std::max<std::int64_t>(room, 0));
}

void Scheduler::append_decode(StepPlan& plan, Request& request) {
    const bool on_host = request.steps_in_flight == 0;
    const std::int64_t drafts = draft_rows(request);
    std::vector<std::int64_t>& tokens = row_tokens_;
    tokens.assign(1, on_host ? request.tokens.back() : -1);
    tokens.insert(tokens.end(), request.drafts.begin(), request.drafts.begin() + drafts);
    plan.append(request.id, request.slot, request.most_length() - 1, tokens, static_cast<std::int32_t>(plan.num_rows()), false,
                request.replay_start, on_host ? -1 : static_cast<std::int32_t>(request.last_index));
    planned_.rows.push_back({request.id, request.admission, request.most_length() + drafts, drafts, true});
    request.last_step = plan.step_id;
    request.last_index = plan.num_requests() - 1;
    request.steps_in_flight += 1;
    request.most_in_flight += 1 + drafts;
    request.drafts.clear();
}

void Scheduler::fill_page_table(StepPlan& plan) const {
    for (const FlightRow& row : planned_.rows) {
        plan.table_width = std::max(plan.table_width, static_cast<std::int64_t>(requests_.at(row.request_id)->pages.size()));
    }
    plan.page_table.assign(planned_.rows.size() * static_cast<std::size_t>(plan.table_width), 0);
    auto out = plan.page_table.begin();
    for (const FlightRow& row : planned_.rows) {
        std::ranges::copy(requests_.at(row.request_id)->pages, out);
        out += plan.table_width;
    }
}

void Scheduler::launch(StepPlan& plan) {
    fill_page_table(plan);
    planned_.step_id = plan.step_id;
    planned_.kind = plan.kind;
    launched_ = plan.step_id;
    flights_.push_back(std::exchange(planned_, Flight{}));
}

}  // namespace counterpoint
