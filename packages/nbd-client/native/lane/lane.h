// A lane: one thread that serves one connection at a time with its own completion queue, queue pairs
// and registered arena.
//
// Control talks to it through atomics, a mailbox and an eventfd; it talks back through a ring of events.
// No lock is shared, so a lane never waits for whoever sets it up.
//
// One lane may be for refills: it serves no connection and fills replicas instead, on the same machinery.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backup/backup_catch_up.h"
#include "base/spsc_ring.h"
#include "front/connection.h"
#include "lane/event.h"
#include "lane/lane_clock.h"
#include "lane/request_waiter.h"
#include "lane/waiter.h"
#include "rdma/arena.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "rdmakit/thread.h"
#include "refill/refill.h"
#include "volume/volume.h"

namespace rdmakit::nbd {

using namespace volume;

struct LaneOptions {
  CqRef cq;
  ChannelRef channel;  // may be empty in WaitMode::poll
  struct Server {
    uint32_t index;
    QpRef qp;
    MrRef mr;
  };
  std::vector<Server> servers;
  void* arena = nullptr;  // of Arena::kBytes, inside every server's memory region
  WaitMode wait_mode = WaitMode::adaptive;
  uint64_t max_spin_ns = 50'000;
  uint64_t operation_timeout_ns = 4'000'000'000;
  bool swap_safe = false;
  Acknowledge acknowledge = Acknowledge::all;
  BackupPort* backup = nullptr;  // nullptr: there is no backup
  bool refills = false;
  uint64_t refill_rate = 0;  // bytes per second; 0: no limit
  uint64_t read_ahead = 0;   // bytes
};

class Lane final : private OperationListener {
 public:
  enum class State : uint32_t { idle, reserved, serving, draining, stopped };

  // `wake_control` is called (on the lane's thread) when there is something for take_events(), or a server
  // has failed: that is on record in the volume.
  Lane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control);
  ~Lane();

  // ---- control path, any thread ----
  // Starts the thread and waits until it is ready. 0 or an errno value.
  int start(std::vector<std::string>& warnings);
  // idle -> reserved, by one caller. Then attach() or give_up().
  bool reserve();
  void give_up();
  // A socket in transmission phase, and what its handshake agreed on.
  void attach(int socket, const Terms& terms);
  void attach(std::unique_ptr<DeviceQueue> device, const Terms& terms);
  // EAGAIN: the mailbox is full.
  int connect(uint32_t server, const QpRef& qp, const MrRef& mr);
  // The lane lets go of the queue pair to a server that has failed, before it acknowledges the next epoch.
  // Then take_back() follows. EAGAIN: the mailbox is full.
  int disconnect(uint32_t server);
  // What the lane has let go of may end here: not on the lane's thread.
  void take_back();
  // The refill lane's only. EAGAIN: the mailbox is full.
  int refill(uint32_t slab, uint32_t server);
  // See hand_over.cc. EAGAIN: the mailbox is full.
  int yield();
  // Goes on with a connection that could not be given away, or has not been yet: then lane_yielded comes now,
  // without a socket. EAGAIN as yield().
  int resume();
  // Lets the thread run on these processors only. EINVAL: it may run on none of them.
  int pin(const std::vector<uint32_t>& processors);
  void wake();
  // Answer what is there until `deadline` (ns), then end the connection and flush the queue pairs.
  void stop(uint64_t deadline);
  // False: the thread did not end by `deadline`; the lane must not be destroyed.
  bool join(uint64_t deadline);
  // After join(): lets go of the verbs objects; the statistics stay.
  void drop_resources();

  State state() const { return state_.load(std::memory_order_acquire); }
  const LaneStatistics& statistics() const { return statistics_; }
  const ServerStatistics& statistics(uint32_t server) const { return rdma_.statistics(server); }
  // nullptr but for the refill lane.
  const Refill* refill() const { return refill_.get(); }
  // nullptr but for the refill lane of a volume with a backup.
  const BackupCatchUp* catch_up() const { return catch_up_.get(); }
  // Nothing that started before the volume's epoch was this one is left, and the commands of then are done.
  uint64_t acknowledged_epoch() const { return acknowledged_epoch_.load(std::memory_order_acquire); }
  // What has happened since the last call. The outcome of a refill, and that of yield(), are state that
  // stands until then: there is one of each at a time. Of what became of connections, and of wrong pages, the
  // oldest are told where there are too many; the statistics have all.
  void take_events(std::vector<Event>& events);
  uint32_t index() const { return index_; }

 private:
  struct Command {
    enum class Type : uint8_t { attach, attach_device, connect, disconnect, refill, yield, resume } type;
    int socket;
    uint32_t server;
    uint32_t slab;
    Handle* qp;  // both with a reference that goes to the lane
    Handle* mr;
    Terms terms;
    DeviceQueue* device = nullptr;  // the lane's
  };

  // With so many operations under way the next requests are taken together with the next completions, or when
  // they have waited for so long (ns). Else a client that asks again for each answer wakes the lane, and the
  // lane the server, once for each page: 4 KiB READs over iWARP, depth 32, cost 5.2 µs of processor at both
  // ends then, and 2.8 so.
  static constexpr uint32_t kBusy = 4;
  static constexpr uint64_t kHoldOff = 50'000;

  int command(Command::Type type, uint32_t server = 0);
  std::unique_ptr<Refill> make_refill();
  std::unique_ptr<BackupCatchUp> make_catch_up();
  void run();
  void prepare_thread();
  void loop();
  void take_commands();
  void acknowledge(uint64_t epoch);
  void call_control();
  bool step_refill();
  void let_go();
  // Operations under way that somebody waits for: a request, whoever ends the connection, or an epoch.
  uint32_t awaited() const {
    const bool all =
        !connection_.is_open() || volume_.epoch() != acknowledged_epoch_.load(std::memory_order_relaxed);
    return rdma_.outstanding() - (all ? 0 : connection_.unawaited());
  }
  bool holds_off() const { return awaited() >= kBusy && !connection_.wants_output(); }
  bool spins_for_request();
  void sleep(uint64_t now);
  bool dozes(uint64_t timeout) const;
  bool wait(bool requests, uint64_t timeout);
  void take_wake();
  uint64_t timeout(uint64_t now) const;
  void take_event();
  void lose_device(const char* call, int error);
  void end_connection();
  void become_idle();
  void hand_over();
  void tell_yielded(int descriptor);
  bool announce_stop();
  bool may_exit(uint64_t now);
  void emit(Event::Type type, const char* reason);

  void operation_acknowledged(Operation& operation) override;
  void operation_decided(Operation& operation, bool succeeded) override;
  void operation_over(Operation& operation) override;
  bool may_move(const Operation& operation) override;
  void server_failed(uint32_t server, const char* reason) override;
  void page_wrong(const WrongPage& page) override;

  const uint32_t index_;
  Volume& volume_;
  LaneOptions options_;
  const std::function<void()> wake_control_;
  LaneStatistics statistics_;
  const Arena arena_;
  RdmaQueue rdma_;
  Connection connection_;
  const std::unique_ptr<Refill> refill_;
  const std::unique_ptr<BackupCatchUp> catch_up_;
  Waiter waiter_;                      // for completions
  RequestWaiter request_waiter_;       // while nothing is under way
  uint32_t processors_ = 0;            // on which the thread might run when it started
  std::atomic<uint32_t> spinners_{0};  // with so many connections at most there are cores to spin on

  UniqueFd wake_;
  LaneClock clock_;
  uint64_t now_ = 0;
  bool yielding_ = false;
  bool look_ = false;  // at the socket: there may be something
  uint64_t looked_at_ = 0;
  bool held_off_ = false;     // requests may be waiting for the next completion
  bool device_lost_ = false;  // its channel tells nothing any more
  bool announced_stop_ = false;
  uint64_t farewell_ = 0;  // until then a remote client is told that this is the end
  bool abandoned_ = false;

  std::atomic<State> state_{State::idle};
  std::atomic<uint64_t> stop_at_{0};  // 0: go on
  std::atomic<uint64_t> acknowledged_epoch_{0};
  SpscRing<Command, 64> commands_;
  std::mutex producers_;  // of commands_; the lane never takes it
  SpscRing<Event, 256> events_;
  SpscRing<Event, 64> wrong_pages_;
  SpscRing<Refill::Outcome, 1> refill_outcome_;
  SpscRing<int, 1> yielded_;  // the descriptor; -1: none
  struct LetGo {              // of one server at a time
    QpRef qp;
    MrRef mr;
    std::atomic<bool> there{false};  // false: it is the lane's, else control's
  };
  LetGo let_go_;

  Thread thread_;
  std::mutex lifecycle_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool ended_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace rdmakit::nbd
