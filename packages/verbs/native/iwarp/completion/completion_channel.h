// ibv_comp_channel: an epoll descriptor that holds an eventfd for completion events and, for completion
// queues with manual progress, their queue pairs' sockets.
#pragma once

#include <infiniband/verbs.h>

#include <mutex>

#include "base/unique_fd.h"
#include "iwarp/poll_set.h"
#include "software/completion_queue.h"

namespace rdmakit::iwarp {

class CompletionQueue;

class CompletionChannel : public ibv_comp_channel {
 public:
  explicit CompletionChannel(ibv_context* context);
  bool ok() const { return poll_set_.ok() && static_cast<bool>(event_fd_); }

  PollSet& poll_set() { return poll_set_; }

  // Adds one event of `queue`.
  void post(CompletionQueue* queue);
  // ibv_get_cq_event: 0 or EAGAIN. With manual progress this is what moves data.
  int take(ibv_cq** queue, void** queue_context);

  void attach();
  void detach(CompletionQueue* queue);  // forgets its events
  bool in_use();

 private:
  void set_readable(bool readable);

  PollSet poll_set_;
  UniqueFd event_fd_;
  std::mutex mutex_;
  software::EventList events_;
  bool readable_ = false;  // the eventfd is
  int takers_ = 0;         // threads in take() that are moving data: they will look at the list again
};

}  // namespace rdmakit::iwarp
