// How long a poller that finds nothing spins before it sleeps.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

namespace rdmakit::ring {

enum class Mode : uint32_t { poll, event, adaptive };

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Learns how long completions take to come, and spins twice that; when they take longer than the
// bound, spinning would only heat the core, so it does not spin at all until they come faster again.
class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(uint64_t bound_ns) : bound_(bound_ns), average_(bound_ns / 2) {}

  // Work came `gap` after the poller had run out of it, asleep or not. One long pause counts little.
  void observe(uint64_t gap) { average_ = (average_ * 7 + std::min(gap, bound_ * 4)) / 8; }
  uint64_t budget() const { return average_ > bound_ ? 0 : std::min(average_ * 2, bound_); }

 private:
  uint64_t bound_;
  uint64_t average_;
};

}  // namespace rdmakit::ring
