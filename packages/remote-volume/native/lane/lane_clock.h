// A lane's clock, in nanoseconds of CLOCK_MONOTONIC.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace rdmakit::volume {

// The clock of one lane: never a system call, nearly. Where the kernel does not trust the time stamp
// counter (emulation, some clouds), clock_gettime is a system call that reads a slow device, and a lane
// that asks in each turn of its loop spends most of its time on that. So: the counter, at a rate
// measured once, held within a few milliseconds of the coarse clock, which costs nothing anywhere.
class LaneClock {
 public:
  LaneClock();
  uint64_t now() {
#if defined(__x86_64__)
    const auto passed = static_cast<int64_t>(__builtin_ia32_rdtsc() - anchor_ticks_);
    const uint64_t time =
        anchor_ + static_cast<uint64_t>(static_cast<double>(passed) * nanoseconds_per_tick_);
    const auto off = static_cast<int64_t>(time - now_ns(CLOCK_MONOTONIC_COARSE));
    if (off < -kTolerance || off > kTolerance) return anchor();
    return time;
#else
    return now_ns();
#endif
  }

 private:
  // More than the coarse clock's own step (10 ms at most).
  static constexpr int64_t kTolerance = 20'000'000;
  uint64_t anchor();

  double nanoseconds_per_tick_ = 1;
  uint64_t anchor_ = 0;
  uint64_t anchor_ticks_ = 0;
};

}  // namespace rdmakit::volume
