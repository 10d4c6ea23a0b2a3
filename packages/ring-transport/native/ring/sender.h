// The outgoing half of a connection: frames are laid into a staging region that mirrors the peer's
// ring, and published in batches. One application thread sends; the poller reports credit and
// completions. The two share only the atomics below.
#pragma once

#include <atomic>
#include <cstdint>

#include "rdmakit/handle.h"
#include "ring/wire.h"
#include "ring/work_id.h"

namespace rdmakit::ring {

enum class SendResult : int32_t { done = 0, full, too_long, closed, failed };

// The peer's ring, from its handshake, and how to notify it.
struct PeerRing {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t log2_capacity = 0;
  uint32_t receive_depth = 0;
  bool write_with_immediate = false;
};

class Sender {
 public:
  // Frames in a batch before it is posted without waiting for flush: the doorbell's share of a message
  // is small by then, and eRPC and UCX settled on as many.
  static constexpr uint32_t kBatchFrames = 16;
  // Bytes in a batch before it is posted, so that the wire works while more is copied.
  static constexpr uint32_t kBatchUnits = 32 * 1024 / kUnit;

  Sender(QpRef qp, uint32_t slot, uint32_t generation, uint32_t send_depth)
      : qp_(std::move(qp)), slot_(slot), generation_(generation), depth_(send_depth) {}

  // `staging` holds the peer's capacity and, behind it, 8 bytes for each entry of the send queue.
  void establish(MrRef staging, const PeerRing& peer);
  bool established() const { return capacity_ != 0; }
  const PeerRing& peer() const { return peer_; }
  uint32_t depth() const { return depth_; }
  uint32_t max_length() const { return max_payload(capacity_); }

  // --- by the sending thread ---
  // Copies one frame into the batch. `full`: there is no room; a writable event follows.
  SendResult queue(FrameType type, uint64_t correlation, const void* data, uint32_t length);
  // Posts the batch. `full`: no credit or no place in the send queue; a writable event follows, after
  // which flush is to be called again.
  SendResult flush();
  // All that was sent has completed, asked after a close frame. If not, a writable event follows.
  bool drained();

  // --- by the poller ---
  Violation credit(uint32_t word);
  void complete(const WorkId& id);
  // What the sending thread waits for and now has, of the two below; the wish is cleared.
  uint32_t granted();
  static constexpr uint32_t kGrantRoom = 1;   // the frame that was refused fits
  static constexpr uint32_t kGrantOther = 2;  // flush or drained may find more than it did

 private:
  bool reserve(uint32_t units, uint64_t& limit);
  uint64_t limit() const;
  bool can_post(uint32_t requests);
  SendResult post();
  uint8_t* at(uint64_t position) const { return staging_ + ((position & mask_) << kUnitLog2); }

  QpRef qp_;
  MrRef mr_;
  PeerRing peer_;
  uint8_t* staging_ = nullptr;
  uint32_t slot_;
  uint32_t generation_;
  uint32_t depth_;  // work requests of data that the send queue takes
  uint32_t capacity_ = 0;
  uint32_t mask_ = 0;
  uint32_t max_inline_ = 0;
  bool failed_ = false;
  bool closing_ = false;  // a close frame is queued: what carries it is signaled

  // Written by the sending thread only.
  uint64_t next_ = 0;      // units laid out
  uint64_t limit_ = 0;     // units that may be laid out, as last computed
  uint32_t frames_ = 0;    // in the batch
  uint64_t requests_ = 0;  // work requests posted
  uint32_t unsignaled_requests_ = 0;
  uint32_t unsignaled_units_ = 0;
  // … and read by the poller, to check a credit against.
  std::atomic<uint64_t> posted_{0};         // units posted
  std::atomic<uint64_t> notifications_{0};  // notifications posted

  // Written by the poller.
  alignas(64) std::atomic<uint64_t> credited_{0};
  std::atomic<uint64_t> credited_notifications_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> completed_requests_{0};

  // Wishes. The sending thread stores one, then looks once more at what the poller stores; the poller
  // stores that, then looks at the wishes. Sequentially consistent, so that one sees the other.
  static constexpr uint64_t kNoWish = UINT64_MAX;
  alignas(64) std::atomic<uint64_t> wished_limit_{kNoWish};  // units that must be free to lay out
  std::atomic<bool> wished_other_{false};
};

}  // namespace rdmakit::ring
