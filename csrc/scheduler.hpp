// The scheduler of one rank: which requests run in the next step, in which pages and slots.
// Knows nothing about tensors, sampling, text or threads (the binding serialises calls).
//
// FCFS without overtaking. A request's arrival number orders everything: the waiting queue, the running list, the rows of a
// plan. The running list is therefore always older than the waiting queue, and its last element is the one most recently
// admitted, which is the victim when a page is missing. A preempted request finds its old place: the front of the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "deferred_release.hpp"
#include "options.hpp"
#include "page_manager.hpp"
#include "request.hpp"
#include "state_slots.hpp"
#include "step_plan.hpp"
#include "vote.hpp"

namespace counterpoint {

// What came out of a step; arrays are the caller's. drafts may be absent (counts empty).
struct StepResult {
    std::span<const std::int64_t> request_ids;   // [R]
    std::span<const std::int64_t> tokens;        // [sum(counts)]
    std::span<const std::int32_t> counts;        // [R]
    std::span<const std::uint8_t> finished;      // [R] 0: it goes on
    std::span<const std::int64_t> draft_tokens;  // [sum(draft_counts)]
    std::span<const std::int32_t> draft_counts;  // [R] or empty
};

// A launched step, until it is committed.
struct FlightRow {
    std::int64_t request_id = 0;
    std::int64_t admission = 0;
    std::int32_t slot = 0;
    std::int64_t end = 0;     // position after its last row
    std::int64_t drafts = 0;  // rows beyond the first, decode only
    bool sampled = false;
};

struct Flight {
    std::int64_t step_id = 0;
    StepKind kind = StepKind::DECODE;
    std::vector<FlightRow> rows;
};

class Scheduler {
public:
    explicit Scheduler(const SchedulerOptions& options, Reduction reduce = {});

    // requests.cpp: coming and going
    Admission add(std::int64_t id, std::span<const std::int64_t> prompt, std::int64_t max_tokens, std::int64_t replay_start);
    bool abort(std::int64_t id);
    std::string explain_never(std::int64_t prompt_length, std::int64_t max_tokens) const;
    std::int64_t lifetime_pages(std::int64_t prompt_length, std::int64_t max_tokens) const;

    // planning.cpp, commit.cpp: the step loop
    std::shared_ptr<StepPlan> schedule();
    std::vector<std::int32_t> commit(std::int64_t step_id, const StepResult& result);
    void discard(std::int64_t step_id);

    // inspection.cpp
    void check_integrity() const;
    std::string dump() const;

    bool has_work() const { return !requests_.empty() || !flights_.empty(); }
    const PageManager& pages() const { return pages_; }
    const StateSlots& slots() const { return slots_; }
    const DeferredRelease& deferred() const { return deferred_; }
    std::int64_t num_waiting() const { return static_cast<std::int64_t>(waiting_.size()); }
    std::int64_t num_running() const { return static_cast<std::int64_t>(running_.size()); }
    std::int64_t num_in_flight() const { return static_cast<std::int64_t>(flights_.size()); }
    std::int64_t num_preemptions() const { return num_preemptions_; }
    std::vector<std::int64_t> request_ids() const;
    const Request& request(std::int64_t id) const;  // throws std::invalid_argument for an id that is not live

private:
    Request* find_live(const FlightRow& row) const;  // nullptr: a zombie
    std::int64_t sequence_limit(std::int64_t prompt_length, std::int64_t max_tokens) const;
    void release_resources(Request& request);
    void preempt(Request& request);  // the last of running_ only

    const Request* partial() const;  // nullptr: no chunked prompt is unfinished
    const Request* head() const;     // of the waiting queue; nullptr: it is empty
    bool is_overdue() const { return head_waited_ >= options_.max_wait_steps; }
    bool is_cache_full() const;
    bool can_admit(const Request& request) const;
    bool can_prefill() const;
    bool can_decode() const;
    Ballot ballot() const;
    void watch();
    std::int64_t pages_to_go_on(const Request& request) const;
    std::string lacks(const Request& request) const;
    void admit(Request& request);
    std::shared_ptr<StepPlan> plan_prefill();
    std::shared_ptr<StepPlan> plan_decode();
    bool reserve_decode_pages(std::size_t index, std::int64_t& promised);
    std::int64_t chunk_rows(const Request& request, std::int64_t budget) const;
    std::int64_t draft_rows(const Request& request) const;
    void append_chunk(StepPlan& plan, Request& request, std::int64_t rows);
    void append_decode(StepPlan& plan, Request& request);
    void fill_page_table(StepPlan& plan) const;
    void launch(StepPlan& plan);

    void check_result(const Flight& flight, const StepResult& result) const;
    const Flight& oldest_flight(std::int64_t step_id) const;
    void settle(Request& request, const FlightRow& row, std::span<const std::int64_t> tokens,
                std::span<const std::int64_t> drafts);

    SchedulerOptions options_;
    Reduction reduce_;
    PageManager pages_;
    StateSlots slots_;
    DeferredRelease deferred_;
    std::unordered_map<std::int64_t, std::unique_ptr<Request>> requests_;
    std::map<std::int64_t, Request*> waiting_;  // by arrival
    std::vector<Request*> running_;             // by arrival; only the last may be in PREFILL
    std::vector<Request*> by_slot_;             // who has the slot; nullptr: nobody
    std::deque<Flight> flights_;                // oldest first
    Flight planned_;                            // rows of the plan being made
    std::vector<std::int64_t> row_tokens_;      // scratch of append_decode

    std::int64_t arrivals_ = 0;
    std::int64_t admissions_ = 0;
    std::int64_t launched_ = 0;   // id of the newest launched step
    std::int64_t committed_ = 0;  // id of the newest committed step
    StepHistory history_;
    std::int64_t head_waited_ = 0;           // decode steps since a request was admitted, while some wait
    std::int64_t calls_without_progress_ = 0;  // of schedule
    std::int64_t num_preemptions_ = 0;
};

}  // namespace counterpoint
