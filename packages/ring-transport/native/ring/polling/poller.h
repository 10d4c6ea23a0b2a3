// Takes the completions of all its connections from one completion queue, posts receives and credit, and
// describes arrived frames on the event ring. In all modes but `caller` a thread of its own does that:
// applications send on their own thread, and the two never wait for each other. In mode `caller` the
// application's thread does it, whenever it turns the poller or looks before it sleeps; in mode `guarded`
// too, and a thread takes over while it does neither (guardian.cc).
//
// What each side may call is said at each function: "application" is one thread at a time (JavaScript).
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/fair_mutex.h"
#include "base/patience.h"
#include "rdmakit/handle.h"
#include "rdmakit/thread.h"
#include "ring/event_ring.h"
#include "ring/polling/polled_connection.h"
#include "ring/polling/waiting.h"

namespace rdmakit::ring {

struct PollerOptions {
  Mode mode = Mode::adaptive;
  int cpu = -1;                      // to pin to; -1: none
  uint64_t spin_ns = 50'000;         // at most, before a sleep; not in modes `poll` and `event`
  uint32_t max_connections = 1024;   // at most kMaxConnections
  uint32_t descriptor_count = 4096;  // a power of two
};

struct ConnectionOptions {
  QpRef qp;
  MrRef ring;
  Version version = Version::three;
  Windows windows{20, 1};
  uint32_t receive_depth = 128;
  SenderOptions send;
};

// What else an application has to do.
struct OtherWork {
  int descriptor = -1;           // readable when there is some; -1: there is some now
  uint64_t until = ~uint64_t{};  // or when it is that late (CLOCK_MONOTONIC, nanoseconds)
};

class Poller {
 public:
  // `doorbell` is called on the polling thread when the event ring's consumer has set EventRing::kIdle.
  Poller(CqRef cq, ChannelRef channel, const PollerOptions& options, std::function<void()> doorbell);
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // By the application. 0 or errno.
  int start();
  // Joins the thread. Idempotent. Connections are released with the poller.
  void stop();
  // The part of it after which nothing rings the doorbell from another thread.
  void end_thread();
  EventRing& event_ring() { return event_ring_; }
  Mode mode() const { return options_.mode; }

  // Modes `caller` and `guarded`, by the application.
  bool turned_by_application() const { return ring::turned_by_application(options_.mode); }
  // Takes completions and describes what they brought: the event ring's head.
  uint32_t turn();
  struct Look {
    bool doorbell;  // the consumer has not seen all that is on the event ring, and counts on being told, now
    bool again;     // before the application sleeps it looks once more
    bool time;      // or looks within kLeavePollMs, as something waits for time to pass
    bool channel_lost;  // channel_fd() will never tell anything again
  };
  static constexpr int kLeavePollMs = 5;
  // Before it sleeps until channel_fd() is readable, or its doorbell rings. What is about to come is awaited
  // for a moment without sleep, while there is no other work.
  Look look_before_sleep(OtherWork other = {});
  // channel_fd() is readable.
  Look look_at_events();
  int channel_fd() const { return channel_->fd; }

  // By the application; a `number` that is not attached is an error that is returned, never followed.
  int attach(const ConnectionOptions& options, uint32_t& number);
  int establish(uint32_t number, const MrRef& staging, const PeerRing& peer);
  // Like those of Sender. Each publishes the limit for frames (EventRing::kStaging) to the thread that lays
  // them out.
  SendResult reserve(uint32_t number, uint32_t next, uint32_t bytes);
  SendResult flush(uint32_t number, uint32_t next, bool signal);
  SendResult flush_lent(uint32_t number, uint32_t next, bool signal, uint32_t offset, uint8_t* data,
                        uint32_t length);
  // The same for who does not.
  SendResult send(uint32_t number, FrameType type, uint32_t correlation, uint32_t immediate, const void* data,
                  uint32_t length);
  SendResult flush(uint32_t number);
  SendResult ping(uint32_t number);
  // Like that of Reader.
  SendResult read(uint32_t number, const MrRef& region, uint64_t offset, uint64_t remote_address,
                  uint32_t remote_key, uint32_t length, uint32_t tag);
  bool drained(uint32_t number);
  // Released units were stored in the slot's word, and half a ring or more is not credited.
  void return_credit(uint32_t number);
  // Breaks the connection. When its completions are through and its frames described, Event::detached.
  void detach(uint32_t number);
  // After Event::detached: destroys it, and with it its references to verbs objects.
  void release(uint32_t number);
  // The consumer has drained an event ring whose EventRing::kFull is set.
  void wake();
  // In the order of kConnectionCounters and kPollerCounters. False: there is no such connection.
  bool counters(uint32_t number, double* out);
  void counters(double* out) const;

 private:
  static constexpr int kCompletions = 32;       // taken at a time
  static constexpr int kFramesInTurn = 64;      // descriptors for one connection before the next has its turn
  static constexpr uint32_t kLooksBetween = 8;  // at other work, while it looks on: a few microseconds
  static constexpr uint32_t kFewInVain = 8;  // hurries in vain, one after the other, before any are left out
  static constexpr uint32_t kMostInVain = 15;        // that count: 127 are left out after each
  static constexpr uint64_t kLeaveNs = 200'000'000;  // for flushed completions to come

  // Kinds of Event::broken.
  static constexpr uint32_t kKindCompletion = 0;
  static constexpr uint32_t kKindViolation = 1;

  struct Slot {
    std::unique_ptr<PolledConnection> owned;          // the application's
    std::atomic<PolledConnection*> current{nullptr};  // set by the application, cleared by the poller
    uint32_t generation = 0;
  };

  // Mode `guarded`: the poller's own state is the application's or the guardian's, for a turn.
  class Hold {
   public:
    explicit Hold(Poller& poller) : mutex_(poller.options_.mode == Mode::guarded ? &poller.turns_ : nullptr) {
      if (mutex_ != nullptr) mutex_->lock();
    }
    ~Hold() {
      if (mutex_ != nullptr) mutex_->unlock();
    }
    Hold(const Hold&) = delete;
    void yield_core() {
      if (mutex_ != nullptr) mutex_->unlock();
      sched_yield();
      if (mutex_ != nullptr) mutex_->lock();
    }

   private:
    FairMutex* mutex_;
  };
  // The application has looked. Within its hold.
  void pass() { passes_.store(passes_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  Look looked();
  bool look_on(Hold& hold, OtherWork other);
  void choose_hurry();
  bool was_preempted();

  void run();
  bool step();
  bool step(bool& shows);
  bool poll_completions();
  void handle(const ibv_wc& completion);
  void settle(PolledConnection& connection);
  void answer(PolledConnection& connection);
  bool deliver_backlog();
  bool deliver(PolledConnection& connection);
  bool tell(PolledConnection& connection, Event event, uint32_t kind = 0, uint32_t detail = 0);
  bool process_requests();
  bool settle_leaving();
  void break_all();
  void lose_channel();
  void break_connection(PolledConnection& connection, uint32_t kind, uint32_t detail);
  void to_backlog(PolledConnection& connection);
  // A turn is wanted without an event: the last one left completions, or frames that the event ring has
  // places for, or the application has asked for something.
  bool wants_turn() const;
  void arm();
  // Or it need not be: the channel is lost.
  bool armed() const { return armed_ || channel_lost_; }
  void take_events();
  void sleep();
  static bool readable(int descriptor);
  bool await_event(bool events, int milliseconds);
  void guard();
  void rest();
  enum class Waits { nothing, unknown, event, turn };
  Waits what_waits();
  void take_over(uint32_t seen);
  void acknowledge_events();
  void request(uint32_t number, uint32_t what);
  void wake_thread();
  void write_wake();
  PolledConnection* find(uint32_t number);
  void show_staging(const PolledConnection& connection);
  template <typename Flush>
  SendResult flush_by(uint32_t number, uint32_t next, bool signal, Flush&& flush);

  CqRef cq_;
  ChannelRef channel_;
  const DataPathVerbs* verbs_;
  PollerOptions options_;
  EventRing event_ring_;
  std::function<void()> doorbell_;
  std::vector<Slot> slots_;
  uint32_t next_slot_ = 0;
  Thread thread_;
  bool running_ = false;
  int wake_fd_ = -1;

  // Application to poller: which slots have pending.
  std::vector<std::atomic<uint64_t>> pending_slots_;
  alignas(64) std::atomic<bool> any_pending_{false};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<bool> sleeping_{false};

  // Mode `guarded`. `turns_`: its owner uses the rest of the poller; the guardian only tries to lock it, and
  // not before an application that waits, so only the application waits for it, at most one turn. `passes_`:
  // how often the application has looked, modulo 2^32.
  alignas(64) FairMutex turns_;
  std::atomic<uint32_t> passes_{0};

  // The poller's own.
  alignas(64) Patience patience_;
  bool turned_by_guardian_ = false;
  bool rings_ = false;  // the guardian is to ring the doorbell
  ConnectionList<&PolledConnection::next_touched> touched_;
  ConnectionList<&PolledConnection::next_backlog> backlog_;
  ConnectionList<&PolledConnection::next_leaving> leaving_;
  bool found_more_ = false;       // since the last sleep, before this one
  uint32_t hurries_in_vain_ = 0;  // one after the other
  uint32_t sleeps_without_hurry_ = 0;
  long preemptions_ = 0;  // at the last call of was_preempted
  bool armed_ = false;
  bool channel_lost_ = false;
  bool more_completions_ = false;  // the last poll may have left some
  unsigned int events_ = 0;        // not acknowledged yet
  PollerCounters counters_;
};

}  // namespace rdmakit::ring
