// The scheduler seen from outside: invariants and the watchdog's dump. See scheduler.hpp.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "scheduler.hpp"

namespace counterpoint {

namespace {

void require_equal(const std::string& what, std::int64_t left, const std::string& meaning, std::int64_t right) {
    if (left != right) {
        throw std::runtime_error("integrity: " + what + " is " + std::to_string(left) + ", but " + meaning + " is " +
                                 std::to_string(right));
    }
}

}  // namespace

void Scheduler::check_integrity() const {
    std::vector<std::int32_t> owners(static_cast<std::size_t>(pages_.num_pages()), 0);
    std::vector<std::int32_t> places(static_cast<std::size_t>(slots_.num_usable()) + 1, 0);
    for (const auto& [id, request] : requests_) {
        std::ranges::for_each(request->pages, [&](std::int32_t page) { ++owners.at(static_cast<std::size_t>(page)); });
        const bool holds = request->state != RequestState::WAITING;
        require_equal("holding of request " + std::to_string(id), holds, "its having a slot", request->slot != 0);
        require_equal("holding of request " + std::to_string(id), holds, "its having pages", !request->pages.empty());
        places.at(static_cast<std::size_t>(request->slot)) += holds ? 1 : 0;
        if (request->length() >= request->limit) {
            require_equal("length of live request " + std::to_string(id), request->length(), "one below its limit",
                          request->limit - 1);
        }
    }
    for (const Deferred& item : deferred_.items()) {
        std::ranges::for_each(item.pages, [&](std::int32_t page) { ++owners.at(static_cast<std::size_t>(page)); });
        ++places.at(static_cast<std::size_t>(item.slot));
        require_equal("fence " + std::to_string(item.fence) + " being ahead", item.fence > committed_, "what it must be", 1);
    }
    std::vector<std::int32_t> free(owners.size(), 0);
    for (const std::int32_t page : pages_.free_pages()) {
        ++free.at(static_cast<std::size_t>(page));
    }
    for (const std::int32_t slot : slots_.free_slots()) {
        ++places.at(static_cast<std::size_t>(slot));
    }
    require_equal("use of page 0", owners[0] + free[0], "what it must be", 0);
    require_equal("use of slot 0", places[0], "what it must be", 0);
    for (std::size_t page = 1; page < owners.size(); ++page) {
        const std::string name = " of page " + std::to_string(page);
        require_equal("number of holders" + name, owners[page], "its reference count",
                      pages_.references(static_cast<std::int32_t>(page)));
        require_equal("presence in the free list" + name, free[page], "its having no holder", owners[page] == 0);
    }
    for (std::size_t slot = 1; slot < places.size(); ++slot) {
        require_equal("number of places of slot " + std::to_string(slot), places[slot], "what it must be", 1);
    }
    for (std::size_t slot = 0; slot < by_slot_.size(); ++slot) {
        const Request* holder = by_slot_[slot];
        require_equal("slot in the table of holders", static_cast<std::int64_t>(slot), "its holder's own",
                      holder == nullptr ? static_cast<std::int64_t>(slot) : holder->slot);
    }
    require_equal("running + waiting", num_running() + num_waiting(), "live requests", static_cast<std::int64_t>(requests_.size()));
    std::int64_t newest = 0;
    for (const Request* request : running_) {
        require_equal("order of request " + std::to_string(request->id), request->arrival > newest, "what it must be", 1);
        newest = request->arrival;
    }
    if (!waiting_.empty() && !running_.empty()) {
        require_equal("head of waiting being younger than all running", waiting_.begin()->first > newest, "what it must be", 1);
    }
}

// What keeps a request from its next step.
std::string Scheduler::lacks(const Request& request) const {
    const std::int64_t missing = pages_to_go_on(request) - static_cast<std::int64_t>(request.pages.size());
    const std::string pages = std::to_string(missing) + " pages, " + std::to_string(pages_.num_free()) + " are free";
    if (request.state != RequestState::WAITING) {
        return missing > 0 ? pages : "nothing but its turn";
    }
    if (num_running() >= options_.max_num_seqs) {
        return "a place: all " + std::to_string(options_.max_num_seqs) + " sequences are taken";
    }
    if (!slots_.can_allocate()) {
        return "a state slot: all " + std::to_string(slots_.num_usable()) + " are taken";
    }
    if (can_admit(request)) {
        return "nothing but its turn";
    }
    return pages + ", " + std::to_string(num_running()) + " of them kept for running requests; admission stops at " +
           std::to_string(std::llround(100.0 * options_.max_cache_usage)) + " % in use";
}

std::string Scheduler::dump() const {
    constexpr std::size_t MOST_LINES = 64;
    std::ostringstream out;
    out << "pages: " << pages_.num_free() << " free + " << deferred_.num_pages() << " deferred of " << pages_.num_usable()
        << ", page size " << options_.page_size << "; slots: " << slots_.num_free() << " free + " << deferred_.num_slots()
        << " deferred of " << slots_.num_usable() << "\nrequests: " << num_running() << " running, " << num_waiting()
        << " waiting; steps: " << launched_ << " launched, " << committed_ << " committed; preemptions: " << num_preemptions_
        << '\n';
    for (const Flight& flight : flights_) {
        out << "in flight: step " << flight.step_id << ' ' << name_of(flight.kind) << ", " << flight.rows.size() << " requests\n";
    }
    if (head() != nullptr) {
        out << "head of the queue: request " << head()->id << " lacks " << lacks(*head()) << '\n';
    }
    std::size_t lines = 0;
    const auto print = [&](const Request& request) {
        if (lines++ < MOST_LINES) {
            out << "request " << request.id << ": " << name_of(request.state) << ", " << request.length() << " tokens (prompt "
                << request.prompt_length << ", limit " << request.limit << "), " << request.computed << " computed, "
                << request.pages.size() << " pages, slot " << request.slot << ", needs "
                << pages_to_go_on(request) << " to go on\n";
        }
    };
    for (const Request* request : running_) {
        print(*request);
    }
    for (const auto& [arrival, request] : waiting_) {
        print(*request);
    }
    if (lines > MOST_LINES) {
        out << "and " << lines - MOST_LINES << " more\n";
    }
    return out.str();
}

}  // namespace counterpoint
