// Replies in the order of their decision, many sent at a time with one sendmsg(2).
//
// A slot's bytes on the wire, front to back:
//   simple, error, status, READ with DF   head | data_length bytes of data
//   READ that fragments                   part 0 | part 1 | … | head, only when it failed
//     part                                runs of pages: OFFSET_DATA head | data, or OFFSET_HOLE head
// The heads of runs are not stored: they are made from the slot whenever they are gathered.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <vector>

#include "front/nbd-socket/reply_head.h"
#include "rdma/arena.h"
#include "rdma/index_stack.h"
#include "request/request_slot.h"

namespace rdmakit::nbd {

using namespace volume;

class ReplyQueue {
 public:
  enum class Status { idle, blocked, failed };

  ReplyQueue(const Arena& arena, std::vector<RequestSlot>& slots, const std::vector<ReplyHead>& heads)
      : arena_(arena), slots_(slots), heads_of_(heads) {}

  // Offsets in replies are relative to an export that begins there in the volume.
  void reset(uint64_t export_offset);
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
  using RunHead = std::array<uint8_t, sizeof(OffsetHoleChunk)>;

  // Where the next byte of a reply is: the part (0 without fragments, parts() for the head of a failure)
  // and how many bytes of that part, heads included, are gone.
  struct Position {
    uint32_t part = 0;
    uint64_t within = 0;
  };
  struct Run {
    uint32_t length;  // bytes of the part
    bool hole;
    uint32_t head() const { return hole ? sizeof(OffsetHoleChunk) : sizeof(OffsetDataChunk); }
    uint32_t on_wire() const { return head() + (hole ? 0 : length); }
  };

  int gather();
  bool gather_one(uint16_t slot, Position position);
  bool gather_plain(uint16_t slot, uint64_t within);
  bool gather_part(uint16_t slot, Position position);
  bool add(const uint8_t* memory, uint64_t length, uint64_t& skip);
  const uint8_t* part_memory(uint16_t slot, uint32_t part) const;
  Run run_at(RequestSlot& slot, uint32_t part, uint32_t at) const;
  const RunHead& make_head(uint16_t slot, uint32_t part, uint32_t at, const Run& run);
  uint32_t whole_parts(const RequestSlot& slot) const;
  uint64_t plain_ready(uint16_t slot) const;
  uint64_t length_of(uint16_t slot, uint32_t part) const;
  bool is_last(const RequestSlot& slot, uint32_t part) const;
  ssize_t transmit(int socket, int segments);
  template <typename Finished>
  void advance(uint64_t bytes, Finished finished) {
    while (bytes > 0) {
      const uint16_t front = queue_.front();
      RequestSlot& slot = slots_[front];
      const uint64_t left = length_of(front, front_.part) - front_.within;
      if (bytes < left) {
        front_.within += bytes;
        const uint16_t head = heads_of_[front].length;
        if (slot.streams() && !slot.request.fragments && front_.within > head)
          slot.parts_sent = static_cast<uint32_t>((front_.within - head) / kOutputChunk);
        return;
      }
      bytes -= left;
      front_.within = 0;
      if (!is_last(slot, front_.part)) {
        front_.part++;
        // Only as far as parts go: what follows them may be the head of a failure.
        slot.parts_sent = front_.part;
        continue;
      }
      front_.part = 0;
      queue_.pop();
      finished(front);
    }
  }

  const Arena& arena_;
  std::vector<RequestSlot>& slots_;
  const std::vector<ReplyHead>& heads_of_;  // by slot
  uint64_t export_offset_ = 0;
  IndexQueue<kRequests> queue_;
  Position front_;           // of the front reply
  uint64_t bytes_sent_ = 0;  // ever
  uint64_t gathered_ = 0;
  bool blocked_ = false;
  size_t segments_ = 0;
  size_t heads_ = 0;
  std::array<iovec, kSegments> iov_;
  std::array<RunHead, kSegments> head_;
};

}  // namespace rdmakit::nbd
