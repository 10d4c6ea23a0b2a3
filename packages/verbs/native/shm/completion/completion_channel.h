// ibv_comp_channel: an eventfd. Completions of this process ring it with an event on the list; a peer
// rings it without one, as a hint to look at the queues that are armed.
#pragma once

#include <infiniband/verbs.h>

#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "software/completion_queue.h"

namespace rdmakit::shm {

class CompletionQueue;

class CompletionChannel : public ibv_comp_channel {
 public:
  explicit CompletionChannel(ibv_context* context);
  bool ok() const { return static_cast<bool>(event_fd_); }

  // Adds one event of `queue`.
  void post(CompletionQueue* queue);
  // ibv_get_cq_event: 0 or EAGAIN.
  int take(ibv_cq** queue, void** queue_context);

  void attach(CompletionQueue* queue);
  void detach(CompletionQueue* queue);  // forgets its events
  bool in_use();

 private:
  void add(CompletionQueue* queue);
  void ring();
  void keep_from_blocking();
  software::CompletionQueueBase* next_event();

  UniqueFd event_fd_;
  // Held while the queues are looked at: that makes detach() final. Before mutex_.
  std::mutex queues_mutex_;
  std::vector<CompletionQueue*> queues_;
  std::mutex mutex_;
  software::EventList events_;
};

}  // namespace rdmakit::shm
