// On how many processors a thread may run.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <memory>

namespace rdmakit::volume {

struct FreeProcessors {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using Processors = std::unique_ptr<cpu_set_t, FreeProcessors>;

// At least 1. Unlike std::thread::hardware_concurrency() it heeds the thread's affinity (taskset, cpusets).
inline size_t usable_processors(pthread_t thread) {
  constexpr size_t kMost = 1 << 16;
  for (size_t count = CPU_SETSIZE; count <= kMost; count *= 2) {
    const size_t bytes = CPU_ALLOC_SIZE(count);
    const Processors set(CPU_ALLOC(count));
    if (set == nullptr) return 1;
    // EINVAL: the kernel's own set is larger (sched_getaffinity(2)).
    const int error = pthread_getaffinity_np(thread, bytes, set.get());
    if (error == 0) return static_cast<size_t>(CPU_COUNT_S(bytes, set.get()));
    if (error != EINVAL) return 1;
  }
  return 1;
}

}  // namespace rdmakit::volume
