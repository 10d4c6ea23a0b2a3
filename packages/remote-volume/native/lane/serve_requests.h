// The work of a lane that serves clients, one at a time.
#pragma once

#include <cstdint>

#include "lane/front.h"
#include "lane/lane.h"
#include "request/request_executor.h"

namespace rdmakit::volume {

template <Front F>
class ServeRequests {
 public:
  using Client = typename F::Client;
  static constexpr bool kServes = true;
  static constexpr uint64_t kBlockTime = F::kBlockTime;
  static constexpr const char* kThreadName = nullptr;  // with its index

  ServeRequests(Volume& volume, const Arena& arena, RdmaQueue& rdma, LaneStatistics& statistics,
                OperationListener& listener, const LaneOptions& options)
      : requests_(volume, arena, rdma, statistics, listener, options.read_ahead),
        front_(requests_, arena, volume) {}

  F& front() { return front_; }
  const F& front() const { return front_; }
  bool is_open() const { return front_.is_open(); }
  bool idle() const { return requests_.idle(); }
  bool quiet() const { return requests_.quiet(); }
  void check_rest() const { requests_.check_rest(); }

  void announce_end() { front_.refuse_new(); }
  // For a lane that shall end; `told`: its client has had time to notice. True: it may end.
  bool may_end(bool told, bool overdue) {
    if (is_open() && ((quiet() && (told || !front_.outlasts_lane())) || overdue))
      front_.drop("engine closed");
    return !is_open() && idle();
  }

  // ---- hot path ----
  // Receives (if `look`), and starts what can be started. True: something moved.
  bool start(uint64_t now, bool look) {
    bool moved = look && front_.receive();
    moved |= requests_.resume(now);
    moved |= front_.take(now);
    moved |= requests_.start_reads(front_.sending());
    // After the existing answers: the client waits for those.
    if (requests_.answered().empty() && front_.may_read_ahead()) requests_.read_ahead();
    front_.end_turn(now);
    return moved;
  }
  bool finish(uint64_t now) { return is_open() && front_.send(now); }
  void operation_acknowledged(Operation& operation, uint64_t now) {
    requests_.operation_acknowledged(operation, now);
  }
  void operation_decided(Operation& operation, bool succeeded, uint64_t now) {
    requests_.operation_decided(operation, succeeded, now);
  }
  void operation_over(Operation& operation) { requests_.operation_over(operation); }
  bool may_move(const Operation& operation) const { return requests_.may_move(operation); }

  bool waits_for_page() const { return requests_.waits_for_page(); }
  uint32_t unawaited() const { return requests_.unawaited(); }
  template <typename Consider>
  void deadlines(Consider consider) const {
    front_.deadlines(consider);
    consider(requests_.next_turn());
  }

 private:
  RequestExecutor requests_;
  F front_;
};

}  // namespace rdmakit::volume
