// Python's view of the core: argument types, array views and the lock. No policy lives here.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "scheduler.hpp"
#include "verification_budget.hpp"

namespace py = pybind11;

namespace counterpoint {

namespace {

// Taken with noconvert: another dtype or a strided view is a TypeError, never a copy.
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> view(const char* name, const Array<T>& array, py::ssize_t dimensions = 1) {
    if (array.ndim() != dimensions) {
        throw std::invalid_argument(std::string(name) + ": has " + std::to_string(array.ndim()) + " dimensions, must have " +
                                    std::to_string(dimensions));
    }
    if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
        throw std::invalid_argument(std::string(name) + ": is not aligned to its elements");
    }
    return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
std::span<const T> view(const char* name, const std::optional<Array<T>>& array) {
    return array ? view(name, *array) : std::span<const T>{};
}

// Booleans as bytes: a byte of an array of them may hold any value.
std::span<const std::uint8_t> view_bytes(const char* name, const Array<bool>& array) {
    const auto booleans = view(name, array);
    return {reinterpret_cast<const std::uint8_t*>(booleans.data()), booleans.size()};
}

// An array that takes over the vector: no copy, freed with the last array that refers to it.
template <typename T>
py::array own(std::vector<T>&& values) {
    auto* held = new std::vector<T>(std::move(values));
    const py::capsule owner(held, [](void* pointer) { delete static_cast<std::vector<T>*>(pointer); });
    return py::array_t<T>(static_cast<py::ssize_t>(held->size()), held->data(), owner);
}

// A StepPlan field as an array whose base is the plan: the plan lives as long as any of its arrays.
template <auto Field>
py::array plan_array(const py::object& self) {
    auto& values = self.cast<StepPlan&>().*Field;
    return py::array(py::dtype::of<typename std::remove_reference_t<decltype(values)>::value_type>(),
                     {static_cast<py::ssize_t>(values.size())}, values.data(), self);
}

py::array fresh_array(const py::object& self) {
    auto& values = self.cast<StepPlan&>().fresh;
    static_assert(sizeof(bool) == sizeof(std::uint8_t));
    return py::array(py::dtype::of<bool>(), {static_cast<py::ssize_t>(values.size())},
                     reinterpret_cast<const bool*>(values.data()), self);
}

py::array page_table_array(const py::object& self) {
    auto& plan = self.cast<StepPlan&>();
    return py::array_t<std::int32_t>({plan.num_requests(), plan.table_width}, plan.page_table.data(), self);
}

// One call at a time, with the GIL released while it waits and works.
class LockedScheduler {
public:
    LockedScheduler(const SchedulerOptions& options, Reduction reduce) : scheduler_(options, std::move(reduce)) {}

    template <typename Call>
    auto with(Call&& call) {
        const py::gil_scoped_release nogil;
        if (holder_.load() == std::this_thread::get_id()) {
            throw std::runtime_error("reduce: must not call the scheduler that calls it");
        }
        const std::lock_guard lock(mutex_);
        const Holding holding(holder_);
        return call(scheduler_);
    }

private:
    using Holder = std::atomic<std::thread::id>;

    struct Holding {
        explicit Holding(Holder& holder_) : holder(holder_) { holder.store(std::this_thread::get_id()); }
        ~Holding() { holder.store(std::thread::id{}); }
        Holding(const Holding&) = delete;
        Holding& operator=(const Holding&) = delete;
        Holder& holder;
    };

    std::mutex mutex_;
    Holder holder_{};
    Scheduler scheduler_;
};

// The group's minimum, asked of Python. Called without the GIL.
Reduction python_reduction(const py::object& reduce) {
    if (reduce.is_none()) {
        return {};
    }
    if (PyCallable_Check(reduce.ptr()) == 0) {
        throw py::type_error("reduce: must be callable or None");
    }
    // The last copy may be dropped by any thread, hence the deleter's own GIL.
    const std::shared_ptr<py::object> held(new py::object(reduce), [](py::object* object) {
        const py::gil_scoped_acquire gil;
        delete object;
    });
    return [held](std::span<std::int64_t> values) {
        const py::gil_scoped_acquire gil;
        const Array<std::int64_t> mine(static_cast<py::ssize_t>(values.size()), values.data());
        const py::object reduced = (*held)(mine);
        if (!py::isinstance<Array<std::int64_t>>(reduced)) {
            throw py::type_error("reduce: must return an int64 array");
        }
        const auto array = reduced.cast<Array<std::int64_t>>();
        const auto minimum = view("reduce", array);
        if (minimum.size() != values.size()) {
            throw std::invalid_argument("reduce: returned " + std::to_string(minimum.size()) + " elements, was given " +
                                        std::to_string(values.size()));
        }
        std::ranges::copy(minimum, values.begin());
    };
}

template <typename Read>
auto getter(Read read) {
    return [read](LockedScheduler& self) { return self.with([&](const Scheduler& s) { return std::int64_t{read(s)}; }); };
}

void bind_pages(py::module_& module) {
    using Pages = Array<std::int32_t>;
    py::class_<PageManager>(module, "PageManager")
        .def(py::init<std::int64_t, std::int64_t>(), py::arg("num_pages"), py::arg("page_size"))
        .def_property_readonly("num_usable", &PageManager::num_usable)
        .def_property_readonly("num_free", &PageManager::num_free)
        .def("can_allocate", &PageManager::can_allocate, py::arg("count"))
        .def("allocate",
             [](PageManager& self, std::int64_t count) {
                 std::vector<std::int32_t> pages;
                 self.allocate(count, pages);
                 return own(std::move(pages));
             }, py::arg("count"))
        .def("retain", [](PageManager& self, const Pages& pages) { self.retain(view("pages", pages)); },
             py::arg("pages").noconvert())
        .def("release", [](PageManager& self, const Pages& pages) { self.release(view("pages", pages)); },
             py::arg("pages").noconvert())
        .def("references", &PageManager::references, py::arg("page"));
}

void bind_plan(py::module_& module) {
    py::class_<StepPlan, std::shared_ptr<StepPlan>>(module, "StepPlan")
        .def_property_readonly("kind", [](const StepPlan& plan) { return name_of(plan.kind); })
        .def_readonly("step_id", &StepPlan::step_id)
        .def_property_readonly("num_requests", &StepPlan::num_requests)
        .def_property_readonly("num_rows", &StepPlan::num_rows)
        .def_property_readonly("request_ids", &plan_array<&StepPlan::request_ids>)
        .def_property_readonly("slots", &plan_array<&StepPlan::slots>)
        .def_property_readonly("query_start", &plan_array<&StepPlan::query_start>)
        .def_property_readonly("positions", &plan_array<&StepPlan::positions>)
        .def_property_readonly("tokens", &plan_array<&StepPlan::tokens>)
        .def_property_readonly("kv_lens", &plan_array<&StepPlan::kv_lens>)
        .def_property_readonly("page_table", &page_table_array)
        .def_property_readonly("sample_rows", &plan_array<&StepPlan::sample_rows>)
        .def_property_readonly("fresh", &fresh_array)
        .def_property_readonly("replay_starts", &plan_array<&StepPlan::replay_starts>)
        .def_property_readonly("previous_rows", &plan_array<&StepPlan::previous_rows>);
}

void bind_steps(py::class_<LockedScheduler>& scheduler) {
    scheduler.def("schedule", [](LockedScheduler& self) { return self.with([](Scheduler& s) { return s.schedule(); }); });
    scheduler.def(
        "commit",
        [](LockedScheduler& self, std::int64_t step_id, const Array<std::int64_t>& request_ids,
           const Array<std::int64_t>& tokens, const Array<std::int32_t>& counts, const Array<bool>& finished,
           const std::optional<Array<std::int64_t>>& draft_tokens, const std::optional<Array<std::int32_t>>& draft_counts) {
            const StepResult result{view("request_ids", request_ids), view("tokens", tokens),
                                    view("counts", counts),           view_bytes("finished", finished),
                                    view("draft_tokens", draft_tokens), view("draft_counts", draft_counts)};
            return own(self.with([&](Scheduler& s) { return s.commit(step_id, result); }));
        },
        py::arg("step_id"), py::arg("request_ids").noconvert(), py::arg("tokens").noconvert(), py::arg("counts").noconvert(),
        py::arg("finished").noconvert(), py::arg("draft_tokens").noconvert() = py::none(),
        py::arg("draft_counts").noconvert() = py::none());
    scheduler.def("discard", [](LockedScheduler& self, std::int64_t step_id) {
        self.with([&](Scheduler& s) { s.discard(step_id); });
    }, py::arg("step_id"));
}

void bind_requests(py::class_<LockedScheduler>& scheduler) {
    scheduler.def(
        "add",
        [](LockedScheduler& self, std::int64_t id, const Array<std::int64_t>& prompt, std::int64_t max_tokens,
           std::int64_t replay_start) {
            const auto tokens = view("prompt", prompt);
            return self.with([&](Scheduler& s) { return s.add(id, tokens, max_tokens, replay_start); });
        },
        py::arg("request_id"), py::arg("prompt").noconvert(), py::arg("max_tokens"), py::arg("replay_start") = 0);
    scheduler.def("abort", [](LockedScheduler& self, std::int64_t id) {
        return self.with([&](Scheduler& s) { return s.abort(id); });
    }, py::arg("request_id"));
    scheduler.def("explain_never", [](LockedScheduler& self, std::int64_t prompt_length, std::int64_t max_tokens) {
        return self.with([&](Scheduler& s) { return s.explain_never(prompt_length, max_tokens); });
    }, py::arg("prompt_len"), py::arg("max_tokens"));
    scheduler.def("lifetime_pages", [](LockedScheduler& self, std::int64_t prompt_length, std::int64_t max_tokens) {
        return self.with([&](Scheduler& s) { return s.lifetime_pages(prompt_length, max_tokens); });
    }, py::arg("prompt_len"), py::arg("max_tokens"));
}

void bind_inspection(py::class_<LockedScheduler>& scheduler) {
    scheduler.def("has_work", [](LockedScheduler& self) { return self.with([](Scheduler& s) { return s.has_work(); }); });
    scheduler.def_property_readonly("num_usable_pages", getter([](const Scheduler& s) { return s.pages().num_usable(); }));
    scheduler.def_property_readonly("num_free_pages", getter([](const Scheduler& s) { return s.pages().num_free(); }));
    scheduler.def_property_readonly("num_deferred_pages", getter([](const Scheduler& s) { return s.deferred().num_pages(); }));
    scheduler.def_property_readonly("num_usable_slots", getter([](const Scheduler& s) { return s.slots().num_usable(); }));
    scheduler.def_property_readonly("num_free_slots", getter([](const Scheduler& s) { return s.slots().num_free(); }));
    scheduler.def_property_readonly("num_deferred_slots", getter([](const Scheduler& s) { return s.deferred().num_slots(); }));
    scheduler.def_property_readonly("num_waiting", getter([](const Scheduler& s) { return s.num_waiting(); }));
    scheduler.def_property_readonly("num_running", getter([](const Scheduler& s) { return s.num_running(); }));
    scheduler.def_property_readonly("num_in_flight", getter([](const Scheduler& s) { return s.num_in_flight(); }));
    scheduler.def_property_readonly("num_preemptions", getter([](const Scheduler& s) { return s.num_preemptions(); }));
    scheduler.def("request_ids", [](LockedScheduler& self) {
        return own(self.with([](const Scheduler& s) { return s.request_ids(); }));
    });
    scheduler.def("state", [](LockedScheduler& self, std::int64_t id) {
        return self.with([&](const Scheduler& s) { return name_of(s.request(id).state); });
    }, py::arg("request_id"));
    scheduler.def("pages", [](LockedScheduler& self, std::int64_t id) {
        return own(self.with([&](const Scheduler& s) { return s.request(id).pages; }));
    }, py::arg("request_id"));
    scheduler.def("slot", [](LockedScheduler& self, std::int64_t id) {
        return self.with([&](const Scheduler& s) { return s.request(id).slot; });
    }, py::arg("request_id"));
    scheduler.def("tokens", [](LockedScheduler& self, std::int64_t id) {
        return own(self.with([&](const Scheduler& s) { return s.request(id).tokens; }));
    }, py::arg("request_id"));
    scheduler.def("num_computed", [](LockedScheduler& self, std::int64_t id) {
        return self.with([&](const Scheduler& s) { return s.request(id).computed; });
    }, py::arg("request_id"));
    scheduler.def("check_integrity", [](LockedScheduler& self) { self.with([](const Scheduler& s) { s.check_integrity(); }); });
    scheduler.def("dump", [](LockedScheduler& self) { return self.with([](const Scheduler& s) { return s.dump(); }); });
}

std::unique_ptr<LockedScheduler> make_scheduler(std::int64_t num_pages, std::int64_t page_size, std::int64_t num_slots,
                                                std::int64_t max_num_seqs, std::int64_t max_num_batched_tokens,
                                                std::int64_t max_model_len, std::int64_t nextn, std::int64_t chunk_grid,
                                                std::int64_t max_consecutive_prefills, double max_cache_usage,
                                                std::int64_t max_in_flight, std::int64_t prefill_all_interval,
                                                std::int64_t prefill_any_interval, std::int64_t max_wait_steps,
                                                std::int64_t stall_limit, const py::object& reduce) {
    const SchedulerOptions options{
        .num_pages = num_pages, .page_size = page_size, .num_slots = num_slots, .max_num_seqs = max_num_seqs,
        .max_num_batched_tokens = max_num_batched_tokens, .max_model_len = max_model_len, .nextn = nextn,
        .chunk_grid = chunk_grid, .max_consecutive_prefills = max_consecutive_prefills, .max_cache_usage = max_cache_usage,
        .max_in_flight = max_in_flight, .prefill_all_interval = prefill_all_interval,
        .prefill_any_interval = prefill_any_interval, .max_wait_steps = max_wait_steps, .stall_limit = stall_limit};
    return std::make_unique<LockedScheduler>(options, python_reduction(reduce));
}

std::int64_t choose_budget_of(const Array<float>& survivals, const Array<std::int32_t>& most, const Array<double>& cost) {
    const auto lengths = view("most", most);
    const auto values = view("survivals", survivals, 2);
    if (survivals.shape(0) != most.size()) {
        throw std::invalid_argument("survivals: has " + std::to_string(survivals.shape(0)) + " rows, must have " +
                                    std::to_string(most.size()) + " as most");
    }
    return choose_budget(values, survivals.shape(1), lengths, view("cost", cost));
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "Scheduler, page manager, step plans and verification budget of the engine; see _core.pyi.";
    py::native_enum<Admission>(module, "Admission", "enum.Enum")
        .value("OK", Admission::OK)
        .value("LATER", Admission::LATER)
        .value("NEVER", Admission::NEVER)
        .finalize();
    bind_pages(module);
    bind_plan(module);
    py::class_<LockedScheduler> scheduler(module, "Scheduler");
    scheduler.def(py::init(&make_scheduler), py::arg("num_pages"), py::arg("page_size"), py::arg("num_slots"),
                  py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"), py::arg("nextn") = 0,
                  py::arg("chunk_grid") = 1, py::kw_only(), py::arg("max_consecutive_prefills") = 8,
                  py::arg("max_cache_usage") = 0.9, py::arg("max_in_flight") = 1, py::arg("prefill_all_interval") = 1,
                  py::arg("prefill_any_interval") = 1, py::arg("max_wait_steps") = 500, py::arg("stall_limit") = 10'000,
                  py::arg("reduce") = py::none());
    bind_requests(scheduler);
    bind_steps(scheduler);
    bind_inspection(scheduler);
    module.def("choose_budget", &choose_budget_of, py::arg("survivals").noconvert(), py::arg("most").noconvert(),
               py::arg("cost").noconvert());
}

}  // namespace counterpoint
