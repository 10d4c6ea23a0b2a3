// The one clock of the engine: CLOCK_MONOTONIC in nanoseconds (no system call: vdso).
#pragma once

#include <cstdint>
#include <ctime>

namespace rdmakit::nbd {

inline uint64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace rdmakit::nbd
