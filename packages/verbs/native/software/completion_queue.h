// ibv_cq and ibv_cq_ex, as far as a software provider's are the same: the structs that a program sees, the
// events that it has to acknowledge, and a completion's fields one by one. An ibv_cq_ex begins like an ibv_cq
// (ibv_cq_ex_to_cq), so every queue is an extended one.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "software/limits.h"

namespace rdmakit::software {

class CompletionQueueBase : public ibv_cq_ex {
 public:
  CompletionQueueBase(ibv_context* context, void* cq_context, ibv_comp_channel* channel);
  ~CompletionQueueBase();
  CompletionQueueBase(const CompletionQueueBase&) = delete;

  ibv_cq* as_cq() { return ibv_cq_ex_to_cq(this); }

  void acknowledge(unsigned count);

  // Queue pairs made on this queue, connected or not.
  std::atomic<int> users{0};

  // The list of the channel (EventList), under its lock.
  CompletionQueueBase* next_with_events = nullptr;
  unsigned events = 0;
  unsigned events_taken = 0;

 protected:
  // Blocks until all events that were taken have been acknowledged, as ibv_destroy_cq(3) does.
  void wait_for_acknowledgements();
  // Sets the readers of the fields of current_ that were requested (`flags`: IBV_WC_EX_…), as
  // ibv_create_cq_ex(3) says.
  void set_readers(uint64_t flags);

  // From ibv_start_poll to ibv_end_poll: for as long as the application likes.
  std::mutex reader_mutex_;
  ibv_wc current_{};
};

// The completion queues of a channel that have events, oldest first. Under the channel's lock.
class EventList {
 public:
  bool empty() const { return first_ == nullptr; }
  // One more event of `queue`.
  void add(CompletionQueueBase* queue) {
    if (queue->events++ == 0) append(queue);
  }
  // Takes one event: its queue, or null.
  CompletionQueueBase* take();
  // Forgets the events of `queue`.
  void remove(CompletionQueueBase* queue);

 private:
  void append(CompletionQueueBase* queue) {
    queue->next_with_events = nullptr;
    (last_ == nullptr ? first_ : last_->next_with_events) = queue;
    last_ = queue;
  }

  CompletionQueueBase* first_ = nullptr;
  CompletionQueueBase* last_ = nullptr;
};

}  // namespace rdmakit::software
