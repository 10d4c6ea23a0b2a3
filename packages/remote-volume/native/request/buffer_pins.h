// Counts the users of each buffer of a front: its request, and each operation on its memory. A buffer is
// reused only when it has no user.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "rdmakit/invariant.h"

namespace rdmakit::volume {

class BufferPins {
 public:
  static constexpr size_t kBuffers = 64;

  void pin(uint16_t buffer) { pins_[buffer]++; }
  void unpin(uint16_t buffer) {
    RDMAKIT_INVARIANT(pins_[buffer] > 0, "buffer %u is not pinned", buffer);
    pins_[buffer]--;
  }
  uint16_t count(uint16_t buffer) const { return pins_[buffer]; }
  bool any() const {
    return std::any_of(pins_.begin(), pins_.end(), [](uint16_t pins) { return pins > 0; });
  }
  // Only when none is pinned by an operation that may still end.
  void clear() { pins_.fill(0); }

 private:
  std::array<uint16_t, kBuffers> pins_{};
};

}  // namespace rdmakit::volume
