// The windows of a ring: one behind the other in its region, each four times as long as the one before.
// Frames lie in one window after the other, in the first until the sender moves on (FrameType::grow), so a
// connection that says little never touches the others. Versions before 4 have one window, which is the ring.
#pragma once

#include <cstdint>

#include "ring/wire/wire.h"

namespace rdmakit::ring {

inline constexpr uint32_t kGrowthLog2 = 2;

// As both ends know them from the handshake.
struct Windows {
  uint32_t log2_capacity = kMinLog2Capacity;  // bytes of the last, which is the largest
  uint32_t count = 1;

  constexpr bool sane() const {
    return log2_capacity >= kMinLog2Capacity && log2_capacity <= kMaxLog2Capacity && count >= 1 &&
           count <= kMaxWindows && log2_capacity >= kMinLog2Capacity + kGrowthLog2 * (count - 1);
  }
  constexpr uint32_t log2_of(uint32_t window) const {
    return log2_capacity - kGrowthLog2 * (count - 1 - window);
  }
  // Bytes before a window; of all of them, for `count`.
  constexpr uint64_t begin(uint32_t window) const {
    uint64_t bytes = 0;
    for (uint32_t before = 0; before < window; ++before) bytes += uint64_t{1} << log2_of(before);
    return bytes;
  }
  constexpr uint64_t bytes() const { return begin(count); }
  constexpr bool larger_than(uint32_t window) const { return window + 1 < count; }
};

// The window that an end is in, in units.
struct Window {
  uint32_t index = 0;
  uint32_t unit_log2 = 0;
  uint32_t capacity = 0;
  uint32_t mask = 0;
  uint64_t begin = 0;  // bytes, in the region

  Window() = default;
  Window(const Windows& windows, uint32_t at, uint32_t log2_of_units)
      : index(at),
        unit_log2(log2_of_units),
        capacity(1u << (windows.log2_of(at) - log2_of_units)),
        mask(capacity - 1),
        begin(windows.begin(at)) {}

  // The byte of the region where a position is.
  uint64_t place(uint64_t position) const { return begin + ((position & mask) << unit_log2); }
  // Units of a frame for which it is no small window: each of two halves, for which credit is returned once,
  // has eight of them. With four, round trips of 32 KiB over shm took 1.7 to 2.8 times as long.
  uint32_t roomy() const { return capacity / 16; }
  uint32_t to_end(uint64_t position) const { return capacity - static_cast<uint32_t>(position & mask); }
};

}  // namespace rdmakit::ring
