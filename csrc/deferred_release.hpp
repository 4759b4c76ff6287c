// Pages and slots whose owner is gone while a launched step may still touch them.
// Knows nothing about requests: a fence is the id of the step after whose commit the resources are free.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "page_manager.hpp"
#include "state_slots.hpp"

namespace counterpoint {

struct Deferred {
    std::int64_t fence = 0;
    std::vector<std::int32_t> pages;
    std::int32_t slot = 0;
};

class DeferredRelease {
public:
    // Fences never decrease: the caller passes the newest launched step.
    void push(Deferred item) {
        num_pages_ += static_cast<std::int64_t>(item.pages.size());
        items_.push_back(std::move(item));
    }

    // Returns to the pools everything whose fence is at or before the step just committed.
    void settle(std::int64_t committed, PageManager& pages, StateSlots& slots) {
        while (!items_.empty() && items_.front().fence <= committed) {
            const Deferred item = std::move(items_.front());
            items_.pop_front();
            num_pages_ -= static_cast<std::int64_t>(item.pages.size());
            pages.release(item.pages);
            slots.release(item.slot);
        }
    }

    std::int64_t num_pages() const { return num_pages_; }
    std::int64_t num_slots() const { return static_cast<std::int64_t>(items_.size()); }
    const std::deque<Deferred>& items() const { return items_; }

private:
    std::deque<Deferred> items_;
    std::int64_t num_pages_ = 0;
};

}  // namespace counterpoint
