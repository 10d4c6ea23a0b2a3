// RDMA READs of a connection: large messages are pulled from where the peer keeps them. The application's
// thread posts them, the poller takes their completions. A READ holds the memory that it fills until it has
// completed, whatever the application does with it meanwhile.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "rdmakit/handle.h"
#include "ring/counters.h"
#include "ring/event_ring.h"
#include "ring/sending/sender.h"
#include "ring/wire/wire.h"

namespace rdmakit::ring {

class Reader {
 public:
  Reader(QpRef qp, uint32_t slot, uint32_t generation)
      : qp_(std::move(qp)), slot_(slot), generation_(generation) {}

  // --- by the application's thread ---
  // Posts a READ of the peer's memory into `region` from `offset` on. `full`: kReservedForReads are under
  // way; `too_long`: no bytes, or bytes outside of the region; `failed`: the queue pair takes no more. When
  // it is done an Event::read with `tag` follows, or the connection is detached; it may follow `failed`, too.
  SendResult read(const MrRef& region, uint64_t offset, uint64_t remote_address, uint32_t remote_key,
                  uint32_t length, uint32_t tag);

  // --- by the poller ---
  // `index` is the work request id's `low`.
  void complete(uint32_t index, ibv_wc_status status);
  bool has_result() const { return told_ != completed_; }
  // Reads the oldest result into everything of `descriptor` but its connection.
  void next(Descriptor& descriptor);
  // READs whose completion has not come.
  bool outstanding() const;

  PostCounters counters;

 private:
  // free, by the application → posted, by the poller → done → free
  enum class State : uint32_t { free, posted, done };
  struct Slot {
    std::atomic<State> state{State::free};
    MrRef region;
    uint32_t tag = 0;
    uint32_t status = 0;
  };

  QpRef qp_;
  uint32_t slot_;
  uint32_t generation_;
  std::array<Slot, kReservedForReads> slots_;
  // The poller's: slots in the order of their completions.
  std::array<uint32_t, kReservedForReads> order_{};
  uint32_t completed_ = 0;
  uint32_t told_ = 0;
};

}  // namespace rdmakit::ring
