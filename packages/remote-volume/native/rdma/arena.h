// The registered memory of one lane, laid out once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "volume/limits.h"

namespace rdmakit::volume {

struct LaneRequirements {
  size_t arena_bytes;
  uint32_t send_queue_depth;          // of each queue pair: all operations, and a fence for each
  uint32_t completion_queue_entries;  // as much for each replica
  uint32_t max_inline_data;           // none is sent inline: payloads are pages
};

class Arena {
 public:
  static constexpr size_t kOutput = size_t{kOutputChunk} * kOutputChunks;
  static constexpr size_t kPages = size_t{kPage} * kRequests;
  static constexpr size_t kZeroes = kPage;
  static constexpr size_t kScratch = kPage;
  // One page more than is used, so that any start address can be rounded up.
  static constexpr size_t kBytes = kFrontMemory + kOutput + kPages + kZeroes + kScratch + kPage;

  Arena() = default;
  explicit Arena(void* memory)
      : base_(reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage)) {
  }

  // A front's own. The output chunks follow, of which it may have the first ones too (RequestExecutor::open).
  uint8_t* front_memory() const { return base_; }
  uint8_t* output_chunk(size_t index) const { return base_ + kFrontMemory + index * kOutputChunk; }
  // A READ of at most a page needs no chunk: each request slot has a page of its own.
  uint8_t* request_page(size_t slot) const { return base_ + kFrontMemory + kOutput + slot * kPage; }
  // Zeros, never written to.
  uint8_t* zeroes() const { return base_ + kFrontMemory + kOutput + kPages; }
  // The target of fences; never read.
  uint8_t* scratch() const { return zeroes() + kZeroes; }

 private:
  uint8_t* base_ = nullptr;
};

constexpr LaneRequirements lane_requirements() {
  return {Arena::kBytes, 2 * kOperations, 2 * kOperations * kMaxReplicas, 0};
}

}  // namespace rdmakit::volume
