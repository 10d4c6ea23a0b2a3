// ibv_cq: a ring with the completions of this side's own work, and the queue pairs whose arrivals are
// in shared memory until they are polled.
//
// Locks: members_lock_, then a queue pair's send lock, then ring_lock_, then the channel's.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "shm/mapping/sleep_lock.h"
#include "shm/progress_thread.h"
#include "software/completion_queue.h"
#include "software/completion_ring.h"

namespace rdmakit::shm {

class CompletionChannel;
class QueuePair;

class CompletionQueue final : public software::CompletionQueueBase {
 public:
  // `flags`: IBV_WC_EX_…, of which the timestamps matter.
  CompletionQueue(ibv_context* context, int entries, void* cq_context, CompletionChannel* channel,
                  uint64_t flags);
  ~CompletionQueue();

  static CompletionQueue* of(ibv_cq* queue) {
    return static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(queue));
  }

  // Adds a completion. `solicited`: it also wakes who asked for solicited events only. `polled`, `position`:
  // CompletionRing::add.
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

  // A peer rang: checks for an arrival for which this queue is armed. If there is one, the queue is disarmed,
  // and the caller posts its event.
  bool look_for_arrivals();

  CompletionChannel* event_channel() const { return channel_; }
  // Completions of this queue carry the time.
  bool stamped() const { return stamped_; }

  // Queue pairs whose sends wait for something; a poller tries them.
  std::atomic<int> waiting{0};

 private:
  int pop(int capacity, ibv_wc* completions, uint64_t* time);
  int scan(int capacity, ibv_wc* completions, uint64_t* time);
  void try_waiting();
  void tell_overrun();

  // completion_queue_extended.cc
  void fill_extended(uint64_t flags);
  int begin_poll();
  int take_next();

  CompletionChannel* const channel_;
  const bool stamped_;

  SleepLock ring_lock_;
  software::CompletionRing<uint64_t> ring_;  // stamped with CLOCK_MONOTONIC
  uint32_t armed_;                           // kArmed…
  std::atomic<bool> overrun_{false};
  ProgressThread::Errand overrun_errand_{[this] { tell_overrun(); }};

  SleepLock members_lock_;
  std::vector<QueuePair*> members_;
  size_t next_ = 0;                     // the member to look at next
  bool look_at_all_ = false;            // the first poll after arming misses nothing
  std::array<QueuePair*, 8> recent_{};  // the ones that had arrivals lately, when there are many
  size_t next_recent_ = 0;

  uint64_t current_time_ = 0;  // of current_
};

}  // namespace rdmakit::shm
