// A peer's shared receive queue, from which this side takes the receives of its messages.
#pragma once

#include <cstdint>
#include <memory>

#include "shm/mapping/shared_mapping.h"
#include "shm/mapping/shared_receive_layout.h"

namespace rdmakit::shm {

class SharedReceives {
 public:
  // From the descriptors of a greeting. Null and errno: EPROTO for what does not fit together.
  static std::unique_ptr<SharedReceives> open(SharedShape shape, int board_fd, int claims_fd);

  // The oldest receive becomes that of the owner's queue pair of this number: its entry, or kNone.
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t take(uint32_t queue_pair);
  // The last take() has left fewer receives than the owner wants, and the owner has not been notified.
  bool tells_limit() { return below_limit_ && claims_->limit_told.exchange(1) == 0; }
  // Says that a queue pair waits. Look once more after that.
  void starve() { claims_->starved.exchange(1, std::memory_order_seq_cst); }

  const ReceiveEntry& entry(uint32_t index) const {
    return *reinterpret_cast<const ReceiveEntry*>(entries_ + index * stride_);
  }
  uint32_t sges() const { return shape_.sges; }

 private:
  SharedReceives() = default;

  const BoardHeader* board_ = nullptr;
  const std::atomic<uint64_t>* tickets_ = nullptr;
  const uint8_t* entries_ = nullptr;
  size_t stride_ = 0;
  ClaimsHeader* claims_ = nullptr;
  std::atomic<uint64_t>* claimed_ = nullptr;
  bool below_limit_ = false;
  SharedShape shape_;
  std::shared_ptr<SharedMapping> board_mapping_;
  std::shared_ptr<SharedMapping> claims_mapping_;
};

}  // namespace rdmakit::shm
