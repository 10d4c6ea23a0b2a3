// When each slab was used last, coarsely: what a server asks for before it takes memory back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace rdmakit::volume {

class SlabIdleTimes {
 public:
  SlabIdleTimes() = default;
  SlabIdleTimes(uint32_t slabs, uint64_t now)
      : opened_(now), steps_(std::make_unique<std::atomic<uint32_t>[]>(slabs)) {}

  // ---- hot path ----
  // Stored only when it changes, so lanes do not take the line from each other for it but once in a step.
  void touch(uint32_t slab, uint64_t now) {
    const auto step = static_cast<uint32_t>(now >> kStep);
    std::atomic<uint32_t>& known = steps_[slab];
    if (known.load(std::memory_order_relaxed) != step) known.store(step, std::memory_order_relaxed);
  }

  // ---- control ----
  // For how long it was not used, in ns, to a step; never used: since the start.
  uint64_t idle(uint32_t slab, uint64_t now) const {
    const uint64_t used = uint64_t{steps_[slab].load(std::memory_order_relaxed)} << kStep;
    const uint64_t since = used > opened_ ? used : opened_;
    return now > since ? now - since : 0;
  }

 private:
  static constexpr unsigned kStep = 27;  // 2^27 ns: 134 ms
  uint64_t opened_ = 0;
  std::unique_ptr<std::atomic<uint32_t>[]> steps_;
};

}  // namespace rdmakit::volume
