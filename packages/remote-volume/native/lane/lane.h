// A lane: one thread with its own completion queue, queue pairs and registered arena. What it does with them
// is its work (working_lane.h): it serves clients, or fills replicas.
//
// Control talks to it through atomics, a mailbox and an eventfd; it talks back through a ring of events.
// No lock is shared, so a lane never waits for control.
//
// lane.cc          control's side, and the life of the thread
// working_lane.h   its loop
// lane_sleep.h     how it sleeps, and what wakes it
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/patience.h"
#include "base/spsc_ring.h"
#include "lane/event.h"
#include "lane/lane_clock.h"
#include "rdma/arena.h"
#include "rdma/rdma_queue.h"
#include "rdma/statistics.h"
#include "rdmakit/thread.h"
#include "refill/refill.h"
#include "volume/volume.h"

namespace rdmakit::volume {

// How a lane waits.
enum class WaitMode { poll, event, adaptive };

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
  uint64_t max_spin_ns = 100'000;
  uint64_t operation_timeout_ns = 4'000'000'000;
  bool swap_safe = false;
  Acknowledge acknowledge = Acknowledge::all;
  BackupPort* backup = nullptr;          // nullptr: there is no backup
  uint64_t refill_rate = 0;              // bytes per second; 0: no limit
  uint64_t read_ahead = 0;               // bytes
  const char* thread_name = "vol-lane";  // at most 8 characters; the lane's index follows
};

class Lane : protected OperationListener {
 public:
  enum class State : uint32_t { idle, reserved, serving, draining, stopped };

  // `wake_control` is called (on the lane's thread) when there is something for take_events(), or a server
  // has failed: that is on record in the volume.
  Lane(uint32_t index, Volume& volume, LaneOptions&& options, std::function<void()> wake_control);
  virtual ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // ---- control path, any thread ----
  // Starts the thread and waits until it is ready. 0 or an errno value.
  int start(std::vector<std::string>& warnings);
  // idle -> reserved, by one caller. Then attach() of a lane that serves, or give_up().
  bool reserve();
  void give_up();
  // EAGAIN: the mailbox is full.
  int connect(uint32_t server, const QpRef& qp, const MrRef& mr);
  // The lane releases the queue pair to a server that has failed, before it acknowledges the next epoch. Then
  // take_back() follows. EAGAIN: the mailbox is full.
  int disconnect(uint32_t server) { return post({Command::Type::disconnect, server}); }
  // Objects that the lane has released are destroyed here, not on the lane's thread.
  void take_back();
  // The refill lane's only. EAGAIN: the mailbox is full.
  int refill(uint32_t slab, uint32_t server) { return post({Command::Type::refill, server, slab}); }
  // The client continues in another process: the lane begins no further request, answers those it has, and
  // gives the client away (event lane_yielded); see Front::part. EAGAIN: the mailbox is full.
  int yield() { return post({Command::Type::yield}); }
  // Continues with a connection that could not be given away, or has not been yet: then lane_yielded comes
  // now, without a socket. EAGAIN as yield().
  int resume() { return post({Command::Type::resume}); }
  // Lets the thread run on these processors only. EINVAL: it may run on none of them.
  int pin(const std::vector<uint32_t>& processors);
  void wake();
  // Answers the existing requests until `deadline` (ns), then ends the connection and flushes the queue
  // pairs.
  void stop(uint64_t deadline);
  // False: the thread did not end by `deadline`; the lane must not be destroyed.
  bool join(uint64_t deadline);
  // After join(): it had nothing left to do, and was not ended by its deadline.
  bool ended_at_rest() const { return ended_at_rest_; }
  // After join(): releases the verbs objects; the statistics stay.
  void drop_resources();
  // After join(), under the lock of who calls wake(), which does nothing from then on.
  void close_descriptor() { wake_.reset(); }

  State state() const { return state_.load(std::memory_order_acquire); }
  const LaneStatistics& statistics() const { return statistics_; }
  const ServerStatistics& statistics(uint32_t server) const { return rdma_.statistics(server); }
  // Nothing that started before the volume's epoch was this one is left, and the commands of then are done.
  uint64_t acknowledged_epoch() const { return acknowledged_epoch_.load(std::memory_order_acquire); }
  // Returns the events since the last call. The outcome of a refill, and that of yield(), are state that
  // stays until then: there is one of each at a time. If there are too many ends of connections or wrong
  // pages, the oldest are returned; the statistics count all.
  void take_events(std::vector<Event>& events);
  uint32_t index() const { return index_; }

 protected:
  struct Command {
    enum class Type : uint8_t { attach, connect, disconnect, refill, yield, resume } type;
    uint32_t server = 0;
    uint32_t slab = 0;
    Handle* qp = nullptr;  // both with a reference that goes to the lane
    Handle* mr = nullptr;
    void* client = nullptr;  // the lane's
    void (*destroy)(void*) = nullptr;
  };

  void attach_client(void* client, void (*destroy)(void*));
  void join_thread() {
    if (thread_.joinable()) thread_.join();
  }
  // ---- the thread ----
  virtual void loop() = 0;
  // All but connect and disconnect.
  virtual void obey(const Command& command) = 0;
  virtual const char* thread_suffix() const = 0;  // nullptr: its index
  void take_commands();
  void acknowledge(uint64_t epoch);
  void call_control();
  void let_go();
  void take_wake();
  void take_event();
  void lose_device(const char* call, int error);
  void tell_yielded(int descriptor);
  void tell_refilled(const Refill::Outcome& outcome);
  void emit(Event::Type type, const char* reason);
  void tell_idle();

  void server_failed(uint32_t server, const char* reason) override;
  void page_wrong(const WrongPage& page) override;

  const uint32_t index_;
  Volume& volume_;
  LaneOptions options_;
  const std::function<void()> wake_control_;
  LaneStatistics statistics_;
  const Arena arena_;
  RdmaQueue rdma_;
  Patience for_completions_;
  Patience for_requests_;   // while nothing is under way
  bool looked_on_ = false;  // since a wait began, and did not sleep

  UniqueFd wake_;
  LaneClock clock_;
  uint64_t now_ = 0;
  bool ended_at_rest_ = false;
  bool device_lost_ = false;  // its channel tells nothing any more

  std::atomic<State> state_{State::idle};
  std::atomic<uint64_t> stop_at_{0};  // 0: continue
  std::atomic<uint64_t> acknowledged_epoch_{0};
  // Of its places those for a client's: control attaches, yields and resumes one at a time.
  static constexpr size_t kClientCommands = 16;
  SpscRing<Command, 128> commands_;
  SpscRing<Event, 256> events_;
  SpscRing<Event, 64> wrong_pages_;
  SpscRing<Refill::Outcome, 1> refill_outcome_;
  SpscRing<int, 1> yielded_;       // the descriptor; -1: none
  std::atomic<bool> idle_{false};  // and control was not told yet
  struct LetGo {                   // of one server at a time
    QpRef qp;
    MrRef mr;
    std::atomic<bool> there{false};  // false: it is the lane's, else control's
  };
  LetGo let_go_;

 private:
  int post(const Command& command);
  void run();
  void prepare_thread();

  std::mutex producers_;  // of commands_; the lane never takes it
  Thread thread_;
  std::mutex lifecycle_;
  std::condition_variable changed_;
  bool ready_ = false;
  bool ended_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace rdmakit::volume
