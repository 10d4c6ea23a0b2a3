// ibv_cq and ibv_cq_ex: a ring of work completions, and the queue pairs that a poller of the ring moves
// forward. The structs begin alike, as ibv_cq_ex_to_cq() wants it, so every queue has room for the extended
// one's verbs; they are filled in when it was made by create_cq_ex.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "iwarp/device_events.h"
#include "iwarp/poll_set.h"
#include "provider.h"
#include "software/fair_mutex.h"

namespace rdmakit::iwarp {

class CompletionChannel;
class QueuePair;

inline constexpr int kMaxCompletions = 1 << 20;

class CompletionQueue : public ibv_cq_ex {
 public:
  // When a completion was added.
  struct Stamp {
    uint64_t monotonic_ns;  // CLOCK_MONOTONIC
    uint64_t wallclock_ns;  // CLOCK_REALTIME
  };
  static constexpr uint64_t kStampFlags =
      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

  CompletionQueue(ibv_context* context, int entries, void* cq_context, CompletionChannel* channel,
                  Progress progress);
  ~CompletionQueue();
  // Null and errno. Reads as `attributes->wc_flags` say.
  static std::unique_ptr<CompletionQueue> create_extended(ibv_context* context,
                                                          const ibv_cq_init_attr_ex& attributes,
                                                          Progress progress);

  static CompletionQueue* of(ibv_cq* cq) {
    return static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(cq));
  }
  ibv_cq* as_cq() { return ibv_cq_ex_to_cq(this); }

  Progress progress_mode() const { return progress_; }

  // Adds a completion. `solicited`: it also wakes who asked for solicited events only. When it is
  // polled, `polled` becomes `position`: a work queue entry is free again only then, so that a
  // completion queue as large as the work queues that feed it cannot overflow.
  void push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled, uint32_t position);
  // Drops the completions that would tell `polled`: its queue pair is going away.
  void forget(const std::atomic<uint32_t>* polled);
  // ibv_poll_cq: the number taken, or -1 when there are no more and some were lost because the ring was
  // full. From then on none is added, IBV_EVENT_CQ_ERR tells of it, and whoever feeds this queue fails.
  // `stamps`: an extended queue's.
  int poll(int capacity, ibv_wc* completions, Stamp* stamps = nullptr);
  // 0 or an errno value.
  int resize(int entries);
  void request_notification(bool solicited_only);

  // A queue pair with a live socket joins. A queue with manual progress watches the socket in its
  // channel's poll set, or, when it has no channel, in one of its own as soon as there are too many
  // queue pairs to try one by one. Tells the queue pair through watch_with().
  void attach(QueuePair* queue_pair, int socket);
  void detach(QueuePair* queue_pair);

  // Queue pairs made on this queue, connected or not.
  std::atomic<int> users{0};

  // Blocks until all events that were taken have been acknowledged, as ibv_destroy_cq(3) does.
  void wait_for_acknowledgements();
  void acknowledge(unsigned count);

  // Of the channel, under its lock.
  CompletionQueue* next_with_events = nullptr;
  unsigned events = 0;
  unsigned events_taken = 0;

 private:
  enum class Armed : uint8_t { no, solicited, any };
  int pop(int capacity, ibv_wc* completions, Stamp* stamps);
  void progress();
  void stamp(Stamp& stamp) const;
  void fail_members();

  // completion_queue_extended.cc
  void extend(const ibv_cq_init_attr_ex& attributes);
  int read_one();
  void set_readers(uint64_t flags);

  const Progress progress_;
  CompletionChannel* const channel_;

  std::mutex ring_mutex_;
  struct Entry {
    ibv_wc completion;
    std::atomic<uint32_t>* polled;
    uint32_t position;
  };
  std::unique_ptr<Entry[]> ring_;
  std::unique_ptr<Stamp[]> stamps_;  // like ring_; null when nobody asked for them
  bool monotonic_wanted_ = false;
  bool wallclock_wanted_ = false;
  uint32_t mask_ = 0;
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
  Armed armed_ = Armed::no;
  std::atomic<bool> newly_armed_{false};  // and not polled since
  std::atomic<bool> overrun_{false};

  // Held while a poller moves the members' data: that is what makes detach() final.
  software::FairMutex members_mutex_;
  struct Member {
    QueuePair* queue_pair;
    int socket;
    bool watched;
  };
  void watch(Member& member, PollSet& set);
  void watch_last();
  std::vector<Member> members_;
  std::unique_ptr<PollSet> own_set_;

  // From start_poll to end_poll.
  std::mutex reader_mutex_;
  ibv_wc current_{};
  Stamp current_stamp_{};

  DeviceEvent error_event_{static_cast<ibv_cq_ex*>(this),
                           [](void* object) { of(static_cast<ibv_cq*>(object))->fail_members(); }};
};

}  // namespace rdmakit::iwarp
