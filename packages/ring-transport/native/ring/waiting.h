// How long a poller that finds nothing spins before it sleeps.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>

namespace rdmakit::ring {

// `caller`: there is no thread; who owns the poller turns it. `guarded`: the same, and a thread does it while
// the owner computes (guardian.cc).
enum class Mode : uint32_t { poll, event, adaptive, caller, guarded };
constexpr bool turned_by_application(Mode mode) { return mode == Mode::caller || mode == Mode::guarded; }

inline uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// One turn of a spin. Whoever is to send what the spinner waits for may have no core but this one, so
// it is offered: on an idle core that costs a quarter of a microsecond, on a busy one it is the
// difference between tens of microseconds and milliseconds.
inline void relax() { sched_yield(); }

// Decides how long to spin: twice as long as completions have lately taken to come. When that is more
// than the bound, spinning would only heat the core, so it does not spin until they come faster again.
class AdaptiveSpin {
 public:
  explicit AdaptiveSpin(uint64_t bound_ns) : bound_(bound_ns), average_(bound_ns / 2) {}

  // Work came `gap` after the thread had run out of it, asleep or not. One long pause counts little.
  void observe(uint64_t gap) { average_ = (average_ * 7 + std::min(gap, bound_ * 4)) / 8; }
  uint64_t budget() const { return average_ > bound_ ? 0 : std::min(average_ * 2, bound_); }

 private:
  uint64_t bound_;
  uint64_t average_;
};

}  // namespace rdmakit::ring
