// ibv_comp_channel: an epoll descriptor that holds two eventfds. One is of this process alone, whose
// completions ring it with an event on the list. The other is given to the peers, who ring it without one, as
// a hint to look at the queues that are armed. A peer may do to it what it likes: a ring of another's cannot
// be taken away, and no thread of this process sleeps in it.
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
  bool ok() const { return ok_; }
  // What peers ring.
  int peers_fd() const { return peers_.get(); }

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
  void silence();
  software::CompletionQueueBase* next_event();

  UniqueFd poll_set_, own_, peers_;
  bool ok_;
  // Held while the queues are looked at: that makes detach() final. Before mutex_.
  std::mutex queues_mutex_;
  std::vector<CompletionQueue*> queues_;
  std::mutex mutex_;
  software::EventList events_;
};

}  // namespace rdmakit::shm
