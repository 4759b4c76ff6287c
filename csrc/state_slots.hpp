// State slots: one fixed-size place a running request. Slot 0 is reserved for padding.
// Knows nothing about what a slot holds; zeroing is asked for in the step plan that first uses it.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace counterpoint {

class StateSlots {
public:
    explicit StateSlots(std::int64_t num_slots) : used_(static_cast<std::size_t>(num_slots), false) {
        for (std::int64_t slot = num_slots - 1; slot >= 1; --slot) {
            free_.push_back(static_cast<std::int32_t>(slot));
        }
    }

    std::int64_t num_usable() const { return static_cast<std::int64_t>(used_.size()) - 1; }
    std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
    bool can_allocate() const { return !free_.empty(); }
    std::span<const std::int32_t> free_slots() const { return free_; }

    // The slot freed last is handed out first.
    std::int32_t allocate() {
        if (free_.empty()) {
            throw std::logic_error("no state slot is free");
        }
        const std::int32_t slot = free_.back();
        free_.pop_back();
        used_[static_cast<std::size_t>(slot)] = true;
        return slot;
    }

    void release(std::int32_t slot) {
        if (slot < 1 || slot > num_usable() || !used_[static_cast<std::size_t>(slot)]) {
            throw std::logic_error("state slot " + std::to_string(slot) + " has no owner");
        }
        used_[static_cast<std::size_t>(slot)] = false;
        free_.push_back(slot);
    }

private:
    std::vector<bool> used_;
    std::vector<std::int32_t> free_;  // a stack
};

}  // namespace counterpoint
