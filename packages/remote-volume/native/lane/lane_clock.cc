#include "lane/lane_clock.h"

#include <unistd.h>

namespace rdmakit::volume {

namespace {

#if defined(__x86_64__)
uint64_t ticks() { return __builtin_ia32_rdtsc(); }
#else
uint64_t ticks() { return 0; }
#endif

// Measures for 10 ms; an error of 1% only makes LaneClock set its anchor again every few seconds.
double measure_tick() {
  const uint64_t first_time = now_ns();
  const uint64_t first = ticks();
  usleep(10'000);
  const uint64_t passed = ticks() - first;
  return passed == 0 ? 1 : static_cast<double>(now_ns() - first_time) / static_cast<double>(passed);
}

}  // namespace

LaneClock::LaneClock() {
  static const double tick = measure_tick();
  nanoseconds_per_tick_ = tick;
  anchor();
}

uint64_t LaneClock::anchor() {
  anchor_ = now_ns();
  anchor_ticks_ = ticks();
  return anchor_;
}

}  // namespace rdmakit::volume
