// Time, in nanoseconds.
#pragma once

#include <cstdint>
#include <ctime>

namespace rdmakit {

inline constexpr uint64_t kMillisecond = 1'000'000;
inline constexpr uint64_t kSecond = 1'000 * kMillisecond;

inline uint64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace rdmakit
