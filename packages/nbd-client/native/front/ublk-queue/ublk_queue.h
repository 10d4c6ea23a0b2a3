// The front of a queue of a ublk device: requests have no headers to parse and their payload is in place, and
// an answer is a number.
//
//   buffer   the tag's  ->  pinned by its request, and by each operation that reads it
//                       ->  commit: the tag's again, or, where somebody is not done with it
//                           (--ack one, a server that hangs), a spare one takes its place
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "front/ublk-queue/device_queue.h"
#include "protocol/request.h"
#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "request/request_executor.h"

namespace rdmakit::nbd {

using namespace volume;

class UblkQueue {
 public:
  UblkQueue(RequestExecutor& requests, const Arena& arena) : requests_(requests), arena_(arena) {}

  // By the thread that serves it.
  void open(std::unique_ptr<DeviceQueue> device, const Terms& terms);
  void close() { device_.reset(); }
  // Also true of a closed queue, until another front opens.
  bool attached() const { return device_ != nullptr; }
  int descriptor() const { return device_->descriptor(); }
  void stop_taking() { yielding_ = true; }
  void resume() { yielding_ = false; }
  bool yielding() const { return yielding_; }
  bool may_part() const { return yielding_ && !device_->pending(); }
  // nullptr: it continues; else the reason why it must end.
  const char* failure() const { return failure_; }

  // ---- hot path ----
  bool receive(uint64_t wait);
  bool take();
  bool send();
  bool more_input() const { return more_input_; }

 private:
  static constexpr uint16_t kBuffers = kDeviceDepth + 8;
  static constexpr size_t kBytes = size_t{kDeviceRequest} * kBuffers;
  // Its buffers lie in the memory that is the front's and in the output chunks behind it.
  static constexpr size_t kTakenChunks = (kBytes - kFrontMemory) / kOutputChunk;
  static_assert((kBytes - kFrontMemory) % kOutputChunk == 0 && kTakenChunks < kOutputChunks);
  static_assert(kBuffers <= BufferPins::kBuffers);

  uint8_t* buffer(uint16_t index) const { return arena_.front_memory() + size_t{index} * kDeviceRequest; }
  bool begin();
  void reclaim_buffers();
  void fail(const char* why) {
    if (failure_ == nullptr) failure_ = why;
  }

  RequestExecutor& requests_;
  const Arena& arena_;
  std::unique_ptr<DeviceQueue> device_;
  Terms terms_;
  IndexQueue<kDeviceDepth> arrived_;  // tags
  std::array<uint16_t, kDeviceDepth> tag_buffer_{};
  std::array<uint16_t, kRequests> slot_tag_{};
  std::array<bool, kBuffers> retired_{};  // becomes spare when nothing pins it
  IndexStack<kBuffers> spare_buffers_;
  uint16_t ended_tags_ = 0;
  bool more_input_ = false;
  bool yielding_ = false;
  const char* failure_ = nullptr;
};

}  // namespace rdmakit::nbd
