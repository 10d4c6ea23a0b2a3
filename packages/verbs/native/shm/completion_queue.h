// ibv_cq: a ring with the completions of this side's own work, and the queue pairs whose arrivals are
// in shared memory until they are polled.
//
// Locks: members_lock_, then a queue pair's send lock, then ring_lock_, then the channel's.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "shm/progress_thread.h"
#include "shm/sleep_lock.h"

namespace rdmakit::shm {

class CompletionChannel;
class QueuePair;

// An ibv_cq_ex begins like an ibv_cq (ibv_cq_ex_to_cq), so every queue is an extended one.
class CompletionQueue final : public ibv_cq_ex {
 public:
  // `flags`: IBV_WC_EX_…, of which the timestamps matter.
  CompletionQueue(ibv_context* context, int entries, void* cq_context, CompletionChannel* channel,
                  uint64_t flags);
  ~CompletionQueue();

  static CompletionQueue* of(ibv_cq* queue) {
    return static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(queue));
  }
  ibv_cq* verbs() { return ibv_cq_ex_to_cq(this); }

  // Adds a completion. `solicited`: it also wakes who asked for solicited events only. When it is
  // polled, `polled` becomes `position`: a work queue entry is free again only then, so that a
  // completion queue as large as the work queues that feed it cannot overflow.
  void push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled, uint32_t position);
  // Drops the completions that would tell `polled`: its queue pair is going away.
  void forget(const std::atomic<uint32_t>* polled);
  // ibv_poll_cq: the number taken, or -1 once a completion was lost because the ring was full. `time`, when
  // asked for, is when the one completion that is taken came into being.
  int poll(int capacity, ibv_wc* completions, uint64_t* time = nullptr);
  // ibv_resize_cq: 0 or an errno value.
  int resize(int entries);
  void request_notification(bool solicited_only);

  // A connected queue pair joins, with its arrivals when this is its receive queue.
  void attach(QueuePair* queue_pair);
  // Once this has returned no poller touches the queue pair.
  void detach(QueuePair* queue_pair);
  // Held while arrivals are taken.
  SleepLock& members_lock() { return members_lock_; }

  // A peer rang: is there an arrival that this queue is armed for? Then it is disarmed, and the caller posts
  // its event.
  bool look_for_arrivals();

  CompletionChannel* event_channel() const { return channel_; }
  // Completions of this queue carry the time.
  bool stamped() const { return stamped_; }

  // Queue pairs made on this queue, connected or not.
  std::atomic<int> users{0};
  // Queue pairs whose sends wait for something; a poller tries them.
  std::atomic<int> waiting{0};

  void acknowledge(unsigned count);

  // Of the channel, under its lock.
  CompletionQueue* next_with_events = nullptr;
  unsigned events = 0;
  unsigned events_taken = 0;

 private:
  int pop(int capacity, ibv_wc* completions, uint64_t* time);
  int scan(int capacity, ibv_wc* completions, uint64_t* time);
  void try_waiting();
  void wait_for_acknowledgements();
  void tell_overrun();

  // completion_queue_extended.cc
  void fill_extended(uint64_t flags);
  int begin_poll();
  int take_next();

  CompletionChannel* const channel_;
  const bool stamped_;

  struct Entry {
    ibv_wc completion;
    std::atomic<uint32_t>* polled;
    uint32_t position;
  };
  SleepLock ring_lock_;
  std::unique_ptr<Entry[]> ring_;
  std::unique_ptr<uint64_t[]> times_;  // of the entries, when they are stamped; CLOCK_MONOTONIC
  uint32_t mask_ = 0;
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
  uint32_t armed_;  // kArmed…
  std::atomic<bool> overrun_{false};
  ProgressThread::Errand overrun_errand_{[this] { tell_overrun(); }};

  SleepLock members_lock_;
  std::vector<QueuePair*> members_;
  size_t next_ = 0;                     // the member to look at next
  bool look_at_all_ = false;            // the first poll after arming misses nothing
  std::array<QueuePair*, 8> recent_{};  // the ones that had arrivals lately, when there are many
  size_t next_recent_ = 0;

  // Between ibv_start_poll and ibv_end_poll.
  std::mutex extended_lock_;  // for as long as the application likes
  ibv_wc current_{};
  uint64_t current_time_ = 0;
};

}  // namespace rdmakit::shm
