// The incoming half of a connection, all of it the poller's: receives, notifications, the frames in
// the ring, and the credit that goes back. Every byte that the peer wrote is checked here.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <vector>

#include "rdmakit/handle.h"
#include "rdmakit/invariant.h"
#include "ring/event_ring.h"
#include "ring/sending/peer_ring.h"
#include "ring/wire/frame_format.h"
#include "ring/wire/windows.h"
#include "ring/wire/wire.h"
#include "ring/work_id.h"

namespace rdmakit::ring {

class Receiver {
 public:
  // `ring` holds the windows and, behind them, ring_words() times 8 bytes: one for each receive, and one for
  // each word of control that may be on its way.
  static constexpr uint32_t ring_words(uint32_t depth) {
    return depth + kReceivesForControl + kReservedForControl;
  }
  Receiver(QpRef qp, Version version, MrRef ring, uint32_t slot, uint32_t generation, const Windows& windows,
           uint32_t depth);

  // Posts every receive: 0 or errno. Once, before the peer can send.
  int start();

  // --- by the poller ---
  // Takes one successful receive completion: the word that it brought, or a violation.
  Violation take(const ibv_wc& completion, uint32_t index, uint32_t& word);
  // A receive came back unused: the queue pair is in error.
  void flushed() {
    RDMAKIT_INVARIANT(outstanding_ > 0, "connection %u has no receive posted", slot_);
    --outstanding_;
  }
  uint32_t outstanding() const { return outstanding_; }
  // Posts the receives that were taken, all with one call: 0 or errno.
  int repost();
  // Accepts `units` more of the ring.
  Violation publish(uint32_t units);
  bool has_frame() const { return parsed_ != published_; }
  // Reads the next frame into everything of `descriptor` but its connection.
  Violation next(Descriptor& descriptor);

  // The peer wants to hear something.
  Violation ping();
  // Sends credit when there is enough of it, and the pong that is owed. 0 or errno.
  int answer(uint32_t released, const PeerRing& peer);
  void control_completed(Control control);
  // Units credited to the peer so far: whole grains.
  uint64_t reported() const { return reported_; }

  ReceiveCounters counters;

 private:
  int post_control(Control control, uint32_t place, uint32_t word, const PeerRing& peer);

  QpRef qp_;
  const FrameFormat format_;
  MrRef mr_;
  const uint8_t* ring_;
  uint32_t slot_;
  uint32_t generation_;
  const Windows windows_;
  const uint32_t largest_;  // units of the last of them
  Window window_;           // that the frames to read next are in
  uint32_t depth_;          // notifications of data that the peer may be ahead
  std::vector<ibv_recv_wr> receives_;
  std::vector<ibv_sge> elements_;
  ibv_recv_wr* taken_ = nullptr;  // chain of receives to post again
  uint32_t taken_count_ = 0;
  uint32_t outstanding_ = 0;

  uint64_t published_ = 0;  // by the peer
  uint64_t parsed_ = 0;     // handed on
  uint64_t released_ = 0;   // consumed
  uint64_t reported_ = 0;   // … and credited
  uint64_t notifications_ = 0;
  uint64_t reported_notifications_ = 0;
  uint32_t credits_in_flight_ = 0;
  uint32_t credits_ = 0;
  bool pong_owed_ = false;
  bool pong_in_flight_ = false;
};

}  // namespace rdmakit::ring
