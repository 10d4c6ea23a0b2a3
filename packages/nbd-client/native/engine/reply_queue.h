// Replies in the order in which they were decided, sent many at a time with one sendmsg(2).
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <vector>

#include "engine/arena.h"
#include "engine/index_stack.h"
#include "engine/request_slot.h"

namespace rdmakit::nbd {

class ReplyQueue {
 public:
  enum class Status { idle, blocked, failed };

  ReplyQueue(const Arena& arena, std::vector<RequestSlot>& slots) : arena_(arena), slots_(slots) {}

  void reset();
  bool empty() const { return queue_.empty(); }
  // The slot whose reply is being sent or comes next.
  uint16_t front() const { return queue_.front(); }
  uint64_t bytes_sent() const { return bytes_sent_; }
  void push(uint16_t slot) { queue_.push(slot); }
  // Sends what can be sent. `finished(slot)` is called for each reply that is out. `failed`: errno.
  template <typename Finished>
  Status send(int socket, Finished finished) {
    for (;;) {
      const int segments = gather();
      if (segments == 0) return Status::idle;
      const ssize_t bytes = transmit(socket, segments);
      if (bytes < 0) return blocked_ ? Status::blocked : Status::failed;
      bytes_sent_ += static_cast<uint64_t>(bytes);
      advance(static_cast<uint64_t>(bytes), finished);
      if (blocked_) return Status::blocked;
    }
  }

 private:
  static constexpr size_t kSegments = 128;

  int gather();
  bool gather_one(uint16_t slot, uint64_t position, int& segments);
  ssize_t transmit(int socket, int segments);
  template <typename Finished>
  void advance(uint64_t bytes, Finished finished) {
    while (bytes > 0) {
      RequestSlot& slot = slots_[queue_.front()];
      const uint64_t left = slot.reply_length() - front_sent_;
      if (bytes < left) {
        front_sent_ += bytes;
        if (slot.streams() && front_sent_ > sizeof slot.header)
          slot.parts_sent = static_cast<uint32_t>((front_sent_ - sizeof slot.header) / kOutputChunk);
        return;
      }
      bytes -= left;
      front_sent_ = 0;
      const uint16_t done = queue_.front();
      queue_.pop();
      finished(done);
    }
  }

  const Arena& arena_;
  std::vector<RequestSlot>& slots_;
  IndexQueue<kRequests> queue_;
  uint64_t front_sent_ = 0;  // bytes of the front reply
  uint64_t bytes_sent_ = 0;  // ever
  uint64_t gathered_ = 0;
  bool blocked_ = false;
  std::array<iovec, kSegments> iov_;
};

}  // namespace rdmakit::nbd
