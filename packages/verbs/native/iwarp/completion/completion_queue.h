// ibv_cq and ibv_cq_ex: a ring of work completions, and the queue pairs that a poller of the ring moves
// forward. The extended one's verbs are filled in when it was made by create_cq_ex.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fair_mutex.h"
#include "iwarp/device_events.h"
#include "iwarp/poll_set.h"
#include "provider/provider.h"
#include "software/completion_queue.h"
#include "software/completion_ring.h"

namespace rdmakit::iwarp {

class CompletionChannel;
class QueuePair;

using software::kMaxCompletions;

class CompletionQueue : public software::CompletionQueueBase {
 public:
  // When a completion was added.
  struct Stamp {
    uint64_t monotonic_ns;  // CLOCK_MONOTONIC
    uint64_t wallclock_ns;  // CLOCK_REALTIME
  };
  static constexpr uint64_t kStampFlags =
      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

  // `stamps`: those of kStampFlags that are wanted.
  CompletionQueue(ibv_context* context, int entries, void* cq_context, CompletionChannel* channel,
                  Progress progress, uint64_t stamps = 0);
  ~CompletionQueue();
  // Null and errno. Reads as `attributes->wc_flags` say.
  static std::unique_ptr<CompletionQueue> create_extended(ibv_context* context,
                                                          const ibv_cq_init_attr_ex& attributes,
                                                          Progress progress);

  static CompletionQueue* of(ibv_cq* cq) {
    return static_cast<CompletionQueue*>(reinterpret_cast<ibv_cq_ex*>(cq));
  }

  Progress progress_mode() const { return progress_; }

  // Adds a completion. `solicited`: it also wakes who asked for solicited events only. `polled`, `position`:
  // CompletionRing::add.
  void push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled, uint32_t position);
  // Drops the completions that would tell `polled`: its queue pair is going away.
  void forget(const std::atomic<uint32_t>* polled);
  // ibv_poll_cq: the number taken, or -1 when there are no more and some were lost because the ring was full.
  // From then on none is added, IBV_EVENT_CQ_ERR reports it, and the queue pairs of this queue fail.
  // `stamps`: an extended queue's.
  int poll(int capacity, ibv_wc* completions, Stamp* stamps = nullptr);
  // 0 or an errno value.
  int resize(int entries);
  void request_notification(bool solicited_only);

  // A queue pair with a live socket joins. A queue with manual progress watches the socket in its
  // channel's poll set, or, when it has no channel, in one of its own as soon as there are too many
  // queue pairs to try one by one. Tells the queue pair through watch_with(). 0, or an errno value: it has
  // not joined.
  [[nodiscard]] int attach(QueuePair* queue_pair, int socket);
  void detach(QueuePair* queue_pair);

 private:
  enum class Armed : uint8_t { no, solicited, any };
  int pop(int capacity, ibv_wc* completions, Stamp* stamps);
  void progress();
  void stamp(Stamp& stamp) const;
  void fail_members();

  // completion_queue_extended.cc
  void extend(uint64_t flags);
  int read_one();

  const Progress progress_;
  CompletionChannel* const channel_;

  std::mutex ring_mutex_;
  software::CompletionRing<Stamp> ring_;
  const bool monotonic_wanted_;
  const bool wallclock_wanted_;
  Armed armed_ = Armed::no;
  std::atomic<bool> newly_armed_{false};  // and not polled since
  std::atomic<bool> overrun_{false};

  // Held while a poller moves the members' data: that is what makes detach() final.
  FairMutex members_mutex_;
  struct Member {
    QueuePair* queue_pair;
    int socket;
    bool watched;
  };
  static int watch(Member& member, PollSet& set);
  int watch_last();
  std::vector<Member> members_;
  std::unique_ptr<PollSet> own_set_;

  Stamp current_stamp_{};  // of current_

  DeviceEvent error_event_{static_cast<ibv_cq_ex*>(this),
                           [](void* object) { of(static_cast<ibv_cq*>(object))->fail_members(); }};
};

}  // namespace rdmakit::iwarp
