// Pages of the KV pool: who may have how many, and how many owners each page has.
// Knows nothing about requests, steps or what a page holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace counterpoint {

// OK: there now. LATER: there once others leave. NEVER: more than the pool has.
enum class Admission { OK, LATER, NEVER };

class PageManager {
public:
    // num_pages includes page 0, which is reserved: it means "none" and takes the writes of padding rows.
    // Throws std::invalid_argument for num_pages < 2 or page_size < 1.
    PageManager(std::int64_t num_pages, std::int64_t page_size);

    std::int64_t page_size() const { return page_size_; }
    std::int64_t num_pages() const { return static_cast<std::int64_t>(references_.size()); }
    std::int64_t num_usable() const { return num_pages() - 1; }
    std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
    std::int64_t pages_for(std::int64_t tokens) const { return (tokens + page_size_ - 1) / page_size_; }

    Admission can_allocate(std::int64_t count) const;
    // std::logic_error unless can_allocate says OK. Appends `count` pages with one owner each to `pages`; the page freed last is handed out first.
    void allocate(std::int64_t count, std::vector<std::int32_t>& pages);
    // One owner more for each page. std::logic_error if one has none; so does release.
    void retain(std::span<const std::int32_t> pages);
    // One owner less for each page; a page without owners is free again.
    void release(std::span<const std::int32_t> pages);

    std::int32_t references(std::int32_t page) const { return references_.at(static_cast<std::size_t>(page)); }
    std::span<const std::int32_t> free_pages() const { return free_; }

private:
    void require_owned(std::int32_t page) const;

    std::int64_t page_size_;
    std::vector<std::int32_t> references_;  // [num_pages] owners; page 0 always 0
    std::vector<std::int32_t> free_;        // a stack
};

}  // namespace counterpoint
