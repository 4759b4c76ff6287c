// See page_manager.hpp.
#include "page_manager.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace counterpoint {

PageManager::PageManager(std::int64_t num_pages, std::int64_t page_size)
    : page_size_(page_size), references_(static_cast<std::size_t>(std::max<std::int64_t>(num_pages, 0)), 0) {
    if (num_pages < 2 || page_size < 1) {
        throw std::invalid_argument("num_pages=" + std::to_string(num_pages) + ", page_size=" + std::to_string(page_size) +
                                    ": must be at least 2 and 1");
    }
    free_.reserve(references_.size());
    for (std::int64_t page = num_pages - 1; page >= 1; --page) {
        free_.push_back(static_cast<std::int32_t>(page));
    }
}

Admission PageManager::can_allocate(std::int64_t count) const {
    if (count >= num_pages()) {
        return Admission::NEVER;
    }
    return num_free() >= count ? Admission::OK : Admission::LATER;
}

void PageManager::allocate(std::int64_t count, std::vector<std::int32_t>& pages) {
    if (count < 0 || can_allocate(count) != Admission::OK) {
        throw std::logic_error("allocate(" + std::to_string(count) + "): " + std::to_string(num_free()) + " pages are free");
    }
    for (std::int64_t i = 0; i < count; ++i) {
        references_[static_cast<std::size_t>(free_.back())] = 1;
        pages.push_back(free_.back());
        free_.pop_back();
    }
}

void PageManager::retain(std::span<const std::int32_t> pages) {
    std::ranges::for_each(pages, [this](std::int32_t page) { require_owned(page); });
    std::ranges::for_each(pages, [this](std::int32_t page) { ++references_[static_cast<std::size_t>(page)]; });
}

void PageManager::release(std::span<const std::int32_t> pages) {
    for (const std::int32_t page : pages) {
        require_owned(page);
        if (--references_[static_cast<std::size_t>(page)] == 0) {
            free_.push_back(page);
        }
    }
}

void PageManager::require_owned(std::int32_t page) const {
    if (page < 1 || page >= num_pages() || references_[static_cast<std::size_t>(page)] < 1) {
        throw std::logic_error("page " + std::to_string(page) + " has no owner");
    }
}

}  // namespace counterpoint
