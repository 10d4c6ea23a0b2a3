// A lane with its work, which is a template argument: ServeRequests with a front, or FillReplicas. The
// definitions are in lane_loop.h and lane_sleep.h; each lane is instantiated in one .cc (refill_lane.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "lane/fill_replicas.h"
#include "lane/lane.h"
#include "lane/serve_requests.h"

namespace rdmakit::volume {

template <typename Work>
class WorkingLane final : public Lane {
 public:
  WorkingLane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control)
      : Lane(index, volume, std::move(options), std::move(wake_control)),
        work_(volume_, arena_, rdma_, statistics_, *this, options_) {}
  ~WorkingLane() override { join_thread(); }

  // The client that a front gets, for a reserved lane.
  template <typename Client>
  void attach(std::unique_ptr<Client> client) {
    static_assert(std::is_same_v<Client, typename Work::Client>);
    attach_client(client.release(), [](void* owned) { delete static_cast<Client*>(owned); });
  }
  const Work& work() const { return work_; }

 private:
  // With this many operations outstanding, the lane takes the next requests together with the next
  // completions, or when they have waited this long (ns). Otherwise a client that sends a request for each
  // answer wakes the lane, and the lane the server, once per page: 4 KiB READs over iWARP at depth 32 then
  // cost 5.2 µs of processor time at both ends, and 2.8 µs this way.
  static constexpr uint32_t kBusy = 4;
  static constexpr uint64_t kHoldOff = 50'000;
  // While it looks on for a completion it looks for requests so often.
  static constexpr uint64_t kLookInterval = 2'000;
  // After the queue pairs were moved to error, flushes have this long to arrive.
  static constexpr uint64_t kFlushTime = kSecond;
  // A remote client may still send requests for this long, which are answered ESHUTDOWN, before the lane
  // disconnects it.
  static constexpr uint64_t kFarewell = 250 * kMillisecond;
  static constexpr uint64_t kPageRetry = kMillisecond;
  static constexpr uint64_t kForever = UINT64_MAX;

  void loop() override;
  void obey(const Command& command) override;
  const char* thread_suffix() const override { return Work::kServes ? nullptr : "refill"; }
  bool is_open() const {
    if constexpr (Work::kServes) return work_.is_open();
    return false;
  }
  bool take_requests(bool& moved);
  void end_clients();
  void end_client();
  void hand_over();
  bool announce_stop();
  bool may_exit(uint64_t now);
  bool looks_on();
  void wait_is_over(bool heard);
  // Outstanding operations that are waited for: by a request, by the end of the connection, or by an epoch.
  uint32_t awaited() const {
    if constexpr (Work::kServes) {
      const bool all =
          !work_.is_open() || volume_.epoch() != acknowledged_epoch_.load(std::memory_order_relaxed);
      return rdma_.outstanding() - (all ? 0 : work_.unawaited());
    }
    return rdma_.outstanding();
  }
  bool holds_off() const {
    if constexpr (Work::kServes) return awaited() >= kBusy && !(is_open() && work_.front().wants_output());
    return awaited() >= kBusy;
  }
  void sleep(uint64_t now);
  bool may_block(uint64_t timeout) const;
  bool wait(bool requests, uint64_t timeout);
  uint64_t timeout(uint64_t now) const;

  void operation_acknowledged(Operation& operation) override {
    work_.operation_acknowledged(operation, now_);
  }
  void operation_decided(Operation& operation, bool succeeded) override {
    work_.operation_decided(operation, succeeded, now_);
  }
  void operation_over(Operation& operation) override { work_.operation_over(operation); }
  bool may_move(const Operation& operation) override { return work_.may_move(operation); }

  Work work_;
  bool yielding_ = false;
  bool look_ = false;  // for requests: there may be something
  uint64_t looked_at_ = 0;
  bool held_off_ = false;  // requests may be waiting for the next completion
  bool announced_stop_ = false;
  uint64_t farewell_ = 0;  // until then requests of a remote client are answered ESHUTDOWN
  bool abandoned_ = false;
};

template <Front F>
using ServingLane = WorkingLane<ServeRequests<F>>;
using RefillLane = WorkingLane<FillReplicas>;

}  // namespace rdmakit::volume
