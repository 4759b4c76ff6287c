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
    watch();
    const Tally tally = count_votes(ballot(), reduce_);
    if (!tally.any.has_work) {
        return nullptr;
    }
    if (choose_kind(tally, history_, options_) == StepKind::PREFILL) {
        if (!flights_.empty()) {
            return nullptr;  // and is started when everything else is settled; the vote is then taken again
        }
        if (!all_are_empty(!can_prefill(), reduce_)) {
            return plan_prefill();
        }
    }
    if (auto plan = tally.any.can_decode ? plan_decode() : nullptr) {
        return plan;
    }
    if (flights_.empty()) {
        throw std::runtime_error("schedule: stalled, nothing is in flight and no request can run\n" + dump());
    }
    return nullptr;
}

void Scheduler::watch() {
    if (requests_.empty()) {
        calls_without_progress_ = 0;
    } else if (++calls_without_progress_ > options_.stall_limit) {
        const Request& oldest = running_.empty() ? *head() : *running_.front();
        throw std::runtime_error("schedule: stalled, no progress in " + std::to_string(options_.stall_limit) + " calls; request " +
                                 std::to_string(oldest.id) + " lacks " + lacks(oldest) + "\n" + dump());
    }
}

Ballot Scheduler::ballot() const {
    const bool waits = !waiting_.empty();
    // One rank alone asks for what it can have. In a group a rank that is short votes as the others like it to, and the
    // second vote tells whether anyone could start a prompt.
    const bool wants = waits && (reduce_ ? !is_cache_full() : can_admit(*head()));
    return {.wants_prefill = wants || partial() != nullptr,
            .has_work = !requests_.empty(),
            .can_decode = can_decode(),
            .has_partial = partial() != nullptr,
            .is_overdue = waits && is_overdue() && can_admit(*head())};
}

const Request* Scheduler::partial() const {
    return !running_.empty() && running_.back()->state == RequestState::PREFILL ? running_.back() : nullptr;
}

const Request* Scheduler::head() const { return waiting_.empty() ? nullptr : waiting_.begin()->second; }

bool Scheduler::can_prefill() const { return partial() != nullptr || (!waiting_.empty() && can_admit(*head())); }

bool Scheduler::is_cache_full() const {
    const auto used = static_cast<double>(pages_.num_usable() - pages_.num_free());
    return !running_.empty() && used > options_.max_cache_usage * static_cast<double>(pages_.num_usable());
}

bool Scheduler::can_admit(const Request& request) const {
    if (num_running() >= options_.max_num_seqs || !slots_.can_allocate()) {
        return false;
    }
    const std::int64_t need = pages_to_go_on(request);
    if (is_overdue()) {
        return pages_.num_free() >= need;
    }
    // A page to spare for every running request: else the next decode step would preempt the newcomer.
    return pages_.num_free() >= need + num_running() && !is_cache_full();
}

// All of its tokens, and the room that a decode step after its next may use; never more than in its whole life.
std::int64_t Scheduler::pages_to_go_on(const Request& request) const {
    const std::int64_t longest = request.most_length() + (request.state == RequestState::WAITING ? 1 : 0);
    return pages_.pages_for(std::min(longest - 1, request.limit) + options_.nextn + 1);
}

bool Scheduler::can_decode() const {
    return std::ranges::any_of(running_, [](const Request* request) {
        return request->state == RequestState::RUNNING && !request->is_ending();
    });
}

void Scheduler::admit(Request& request) {
    pages_.allocate(pages_to_go_on(request), request.pages);
    request.slot = slots_.allocate();
    by_slot_[static_cast<std::size_t>(request.slot)] = &request;
    request.admission = ++admissions_;
    request.state = RequestState::PREFILL;
    head_waited_ = 0;
    waiting_.erase(request.arrival);
    running_.push_back(&request);
}

std::int64_t Scheduler::chunk_rows(const Request& request, std::int64_t budget) const {
    const std::int64_t remaining = request.prefill_length() - request.computed;
    if (remaining <= budget) {
        return remaining;
    }
    const std::int64_t end = (request.computed + budget) / options_.chunk_grid * options_.chunk_grid;
    return std::max<std::int64_t>(end - request.computed, 0);
}

std::shared_ptr<StepPlan> Scheduler::plan_prefill() {
    auto plan = std::make_shared<StepPlan>(StepKind::PREFILL, launched_ + 1);
    std::int64_t budget = options_.max_num_batched_tokens;
    if (partial() != nullptr) {
        Request& request = *running_.back();
        const std::int64_t rows = chunk_rows(request, budget);
        const bool whole = request.computed + rows == request.prefill_length();
        append_chunk(*plan, request, rows);
        budget = whole ? budget - rows : 0;
    }
    while (budget > 0 && !waiting_.empty()) {
        Request& request = *waiting_.begin()->second;
        const std::int64_t rows = chunk_rows(request, budget);
        if (rows == 0 || !can_admit(request)) {
            break;
        }
        admit(request);
        append_chunk(*plan, request, rows);
        budget = rows == request.prefill_length() ? budget - rows : 0;
    }
    history_ = {.decodes_since_prefill = 0, .prefills_since_decode = history_.prefills_since_decode + 1};
    launch(*plan);
    return plan;
}

void Scheduler::append_chunk(StepPlan& plan, Request& request, std::int64_t rows) {
    const std::int64_t end = request.computed + rows;
    const bool sampled = end == request.length();  // a request that comes back has its next token already
    const std::span<const std::int64_t> tokens(request.tokens);
    plan.append(request.id, request.slot, request.computed,
                tokens.subspan(static_cast<std::size_t>(request.computed), static_cast<std::size_t>(rows)),
                sampled ? static_cast<std::int32_t>(plan.num_rows() + rows - 1) : -1, request.computed == 0,
                request.replay_start, -1);
    planned_.rows.push_back({request.id, request.admission, request.slot, end, 0, sampled});
    request.last_step = plan.step_id;
    request.last_index = plan.num_requests() - 1;
    if (sampled) {
        request.steps_in_flight = 1;
        request.most_in_flight = 1;
    }
}

std::shared_ptr<StepPlan> Scheduler::plan_decode() {
    auto plan = std::make_shared<StepPlan>(StepKind::DECODE, launched_ + 1);
    plan->reserve(running_.size());
    planned_.rows.reserve(running_.size());
    std::int64_t promised = 0;  // pages that older requests of this step wait for
    for (std::size_t index = 0; index < running_.size(); ++index) {
        Request& request = *running_[index];
        if (request.state == RequestState::RUNNING && !request.is_ending() && reserve_decode_pages(index, promised)) {
            append_decode(*plan, request);
        }
    }
    if (plan->num_requests() == 0 && !reduce_) {
        return nullptr;  // in a group it goes along with the others
    }
    history_ = {.decodes_since_prefill = history_.decodes_since_prefill + 1, .prefills_since_decode = 0};
    head_waited_ = waiting_.empty() ? 0 : head_waited_ + 1;
    launch(*plan);
    return plan;
}

// Pages for the rows of this step. False: it sits out this step (its pages are on their way back
// behind a step in flight) or was itself the one to preempt.
bool Scheduler::reserve_decode_pages(std::size_t index, std::int64_t& promised) {
    Request& request = *running_[index];
    const std::int64_t missing = pages_to_go_on(request) - static_cast<std::int64_t>(request.pages.size());
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
    // At its least length the drafts and one token more stay within the limit: the drafts of a sequence that long, whatever
    // the host knows of it yet. The device drops those beyond its true length.
    const std::int64_t room = request.limit - request.least_length() - 1;
    const bool on_device = request.steps_in_flight > 0;
    const std::int64_t given = on_device ? options_.nextn : static_cast<std::int64_t>(request.drafts.size());
    return std::min(given, room);
}

void Scheduler::append_decode(StepPlan& plan, Request& request) {
    const bool on_host = request.steps_in_flight == 0;
    const std::int64_t drafts = draft_rows(request);
    std::vector<std::int64_t>& tokens = row_tokens_;
    tokens.assign(1, on_host ? request.tokens.back() : -1);
    if (on_host) {
        tokens.insert(tokens.end(), request.drafts.begin(), request.drafts.begin() + drafts);
    } else {
        tokens.resize(static_cast<std::size_t>(1 + drafts), -1);
    }
    plan.append(request.id, request.slot, request.most_length() - 1, tokens, static_cast<std::int32_t>(plan.num_rows()), false,
                request.replay_start, on_host ? -1 : static_cast<std::int32_t>(request.last_index));
    planned_.rows.push_back({request.id, request.admission, request.slot, request.most_length() + drafts, drafts, true});
    request.last_step = plan.step_id;
    request.last_index = plan.num_requests() - 1;
    request.steps_in_flight += 1;
    request.most_in_flight += 1 + drafts;
    request.drafts.clear();
}

void Scheduler::fill_page_table(StepPlan& plan) const {
    for (const FlightRow& row : planned_.rows) {
        plan.table_width = std::max(plan.table_width, static_cast<std::int64_t>(find_live(row)->pages.size()));
    }
    plan.page_table.assign(planned_.rows.size() * static_cast<std::size_t>(plan.table_width), 0);
    auto out = plan.page_table.begin();
    for (const FlightRow& row : planned_.rows) {
        std::ranges::copy(find_live(row)->pages, out);
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
