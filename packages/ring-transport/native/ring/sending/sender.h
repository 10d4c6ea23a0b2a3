// The outgoing half of a connection: frames are laid out in a staging region that mirrors the peer's
// ring, and published in batches. One application thread sends; the poller reports credit and
// completions. The two share only the atomics below.
//
// The sending thread lays frames out itself, from next() up to window(), and says how far it got
// (advance). It comes back only for more room (reserve) and to post (flush). queue() is all of that in one
// call, for C++.
#pragma once

#include <atomic>
#include <cstdint>

#include "rdmakit/handle.h"
#include "ring/counters.h"
#include "ring/sending/peer_ring.h"
#include "ring/wire/frame_format.h"
#include "ring/wire/wire.h"
#include "ring/work_id.h"

namespace rdmakit::ring {

enum class SendResult : int32_t { done = 0, full, too_long, closed, failed };

struct SenderOptions {
  uint32_t depth = 128;  // work requests of data that the send queue takes
  uint32_t signal_every =
      0;  // of those, one is signaled; at most a quarter of the depth, which is 0's meaning
  // queue() posts a batch without waiting for flush when it has so many frames: the doorbell's share of a
  // message is small by then, and eRPC and UCX settled on as many …
  uint32_t batch_frames = 16;
  // … or so many bytes, so that the wire works while more is copied.
  uint32_t batch_bytes = 32 * 1024;
};

class Sender {
 public:
  Sender(QpRef qp, Version version, uint32_t slot, uint32_t generation, const SenderOptions& options);

  // `staging` holds the peer's windows and, behind them, 8 bytes for each entry of the send queue.
  void establish(MrRef staging, const PeerRing& peer);
  bool established() const { return current_.capacity != 0; }
  const PeerRing& peer() const { return peer_; }
  uint32_t depth() const { return options_.depth; }
  uint32_t max_length() const { return max_payload(peer_.windows.log2_capacity); }

  // --- by the sending thread ---
  // Frames are laid out up to `next` (modulo 2^32) now. False when that is beyond window().
  bool advance(uint32_t next);
  // Makes room at next() for a frame of so many bytes, of header and payload: behind a pad when it does not
  // fit before the window's end, and in a larger window when there is one and no room in this. `full`: there
  // is none; a writable event follows.
  SendResult reserve(uint32_t bytes);
  // Where the next frame goes, and how far frames may reach: never over the ring's end.
  uint64_t next() const { return next_; }
  uint64_t window() const;
  uint64_t posted() const { return posted_.load(std::memory_order_relaxed); }
  uint8_t* at(uint64_t position) const { return staging_ + current_.place(position); }
  // The window of the peer's that they are in.
  uint32_t current_window() const { return current_.index; }
  // Posts staged frames as one batch. `full`: no credit or no place in the send queue; a writable event
  // follows, after which flush must be called again.
  SendResult flush();
  // flush() of a batch whose last payload is still at `data`, where it may change as soon as this returns;
  // its place is `offset` bytes behind the start of the staging region. `full`: it has been copied there.
  // `failed` also where that is no place at the batch's end.
  SendResult flush_lent(uint32_t offset, uint8_t* data, uint32_t length);
  // From now on the last work request of each post is signaled, so that drained() comes true.
  void signal() { signal_ = true; }
  // Copies one frame into the batch, and posts the batch when it is large. Results as of reserve.
  SendResult queue(FrameType type, uint32_t correlation, uint32_t immediate, const void* data,
                   uint32_t length);
  // All that was sent has completed, asked after signal(). If not, a writable event follows.
  bool drained();
  // Asks the peer's poller for a sign of life. `full`: the last ping has not been answered yet.
  SendResult ping();

  // --- by the poller ---
  Violation credit(uint32_t word);
  Violation pong();
  void complete(const WorkId& id);
  void ping_completed() { ping_.fetch_and(~kPingPosted, std::memory_order_release); }
  // The event that the sending thread waits for and now has, of the two below; it is cleared.
  uint32_t granted();
  static constexpr uint32_t kGrantRoom = 1;   // the frame that was refused fits, or may
  static constexpr uint32_t kGrantOther = 2;  // flush or drained may find more than it did

  SendCounters counters;

 private:
  bool make_room(uint32_t units, uint64_t& awaited);
  SendResult grow(uint32_t units);
  bool larger() const { return peer_.windows.larger_than(current_.index); }
  bool outgrows(uint32_t units) const { return larger() && units > current_.roomy(); }
  uint64_t consumed() const;
  uint64_t limit() const;
  bool can_post(uint32_t requests);
  uint32_t bytes_between(uint64_t begin, uint64_t end) const;
  SendResult post();

  QpRef qp_;
  const FrameFormat format_;
  MrRef mr_;
  PeerRing peer_;
  uint8_t* staging_ = nullptr;
  uint8_t* words_ = nullptr;  // of notifications by SEND, behind the frames
  uint32_t slot_;
  uint32_t generation_;
  SenderOptions options_;
  Window current_;
  uint32_t max_inline_ = 0;
  bool failed_ = false;
  bool signal_ = false;
  const LentBytes* lent_ = nullptr;  // during flush_lent()

  // Written by the sending thread only.
  uint64_t next_ = 0;     // units laid out
  uint64_t limit_ = 0;    // units that may be laid out, as last computed
  uint32_t frames_ = 0;   // queued since the last post
  uint64_t pad_ = 0;      // the last pad
  uint64_t pad_end_ = 0;  // … and its end, a multiple of the capacity; 0: there was none
  uint32_t growing_ = 0;  // the window that a GROW names which is not posted yet, or 0
  uint64_t posted_requests_ = 0;
  uint32_t unsignaled_requests_ = 0;
  uint32_t unsignaled_units_ = 0;
  // Filled in but for what changes: up to the ring's end, from its start, the notification by SEND.
  static constexpr uint32_t kMostRequests = 3;
  ibv_send_wr requests_[kMostRequests] = {};
  ibv_sge elements_[kMostRequests] = {};
  // … and read by the poller, to check a credit against.
  std::atomic<uint64_t> posted_{0};         // units posted
  std::atomic<uint64_t> notifications_{0};  // notifications posted

  // Written by the poller.
  alignas(64) std::atomic<uint64_t> credited_{0};
  std::atomic<uint64_t> credited_notifications_{0};
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> completed_requests_{0};

  // The awaited position. The sending thread stores one, then checks once more the value that the poller
  // stores; the poller stores that value, then checks for pending waits. Sequentially consistent, so that one
  // sees the other.
  static constexpr uint64_t kNothingAwaited = UINT64_MAX;
  alignas(64) std::atomic<uint64_t> awaited_units_{kNothingAwaited};  // that must be consumed for more room
  std::atomic<bool> awaits_growth_{false};                            // that a GROW can be posted
  std::atomic<bool> awaited_other_{false};
  // Set by the sending thread when it pings, cleared by the poller.
  static constexpr uint32_t kPingUnanswered = 1;
  static constexpr uint32_t kPingPosted = 2;
  std::atomic<uint32_t> ping_{0};
};

}  // namespace rdmakit::ring
