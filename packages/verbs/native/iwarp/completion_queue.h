// ibv_cq: a ring of work completions, and the queue pairs that a poller of the ring moves forward.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "iwarp/poll_set.h"
#include "provider.h"

namespace rdmakit::iwarp {

class CompletionChannel;
class QueuePair;

class CompletionQueue : public ibv_cq {
 public:
  CompletionQueue(ibv_context* context, int entries, void* cq_context, CompletionChannel* channel,
                  Progress progress);
  ~CompletionQueue();

  Progress progress_mode() const { return progress_; }

  // Adds a completion. `solicited`: it also wakes who asked for solicited events only. When it is
  // polled, `polled` becomes `position`: a work queue entry is free again only then, so that a
  // completion queue as large as the work queues that feed it cannot overflow.
  void push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled, uint32_t position);
  // Drops the completions that would tell `polled`: its queue pair is going away.
  void forget(const std::atomic<uint32_t>* polled);
  // ibv_poll_cq: the number taken, or -1 once completions were lost because the ring was full.
  int poll(int capacity, ibv_wc* completions);
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
  int pop(int capacity, ibv_wc* completions);
  void progress();

  const Progress progress_;
  CompletionChannel* const channel_;

  std::mutex ring_mutex_;
  struct Entry {
    ibv_wc completion;
    std::atomic<uint32_t>* polled;
    uint32_t position;
  };
  std::unique_ptr<Entry[]> ring_;
  uint32_t mask_ = 0;
  std::atomic<uint32_t> head_{0};
  std::atomic<uint32_t> tail_{0};
  Armed armed_ = Armed::no;
  std::atomic<bool> overrun_{false};

  // Held while a poller moves the members' data: that is what makes detach() final.
  std::mutex members_mutex_;
  struct Member {
    QueuePair* queue_pair;
    int socket;
    bool watched;
  };
  void watch(Member& member, PollSet& set);
  std::vector<Member> members_;
  std::unique_ptr<PollSet> own_set_;
};

}  // namespace rdmakit::iwarp
