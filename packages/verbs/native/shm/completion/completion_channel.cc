#include "shm/completion/completion_channel.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <cerrno>

#include "shm/completion/completion_queue.h"

namespace rdmakit::shm {

CompletionChannel::CompletionChannel(ibv_context* context)
    : ibv_comp_channel{}, event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  this->context = context;
  fd = event_fd_.get();
  refcnt = 0;
}

void CompletionChannel::attach(CompletionQueue* queue) {
  const std::lock_guard lock(queues_mutex_);
  queues_.push_back(queue);
}

bool CompletionChannel::in_use() {
  const std::lock_guard lock(queues_mutex_);
  return !queues_.empty();
}

void CompletionChannel::detach(CompletionQueue* queue) {
  const std::lock_guard queues_lock(queues_mutex_);
  std::erase(queues_, queue);
  const std::lock_guard lock(mutex_);
  events_.remove(queue);
}

// The peers have the descriptor, and with it its flags: a write to a counter that one of them has filled
// would sleep, and so would a read of one that it has emptied.
void CompletionChannel::keep_from_blocking() {
  if ((fcntl(event_fd_.get(), F_GETFL) & O_NONBLOCK) == 0) fcntl(event_fd_.get(), F_SETFL, O_NONBLOCK);
}

void CompletionChannel::ring() {
  keep_from_blocking();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(event_fd_.get(), &one, sizeof one);
}

void CompletionChannel::post(CompletionQueue* queue) {
  add(queue);
  ring();
}

void CompletionChannel::add(CompletionQueue* queue) {
  const std::lock_guard lock(mutex_);
  events_.add(queue);
}

software::CompletionQueueBase* CompletionChannel::next_event() {
  const std::lock_guard lock(mutex_);
  software::CompletionQueueBase* taken = events_.take();
  if (!events_.empty()) ring();
  return taken;
}

int CompletionChannel::take(ibv_cq** queue, void** queue_context) {
  // Silence the descriptor first and look second: what comes in between rings again.
  uint64_t count;
  const iovec into{&count, sizeof count};
  // This does not sleep whatever its flags are, but before Linux 5.8 it reads nothing from an eventfd.
  if (preadv2(event_fd_.get(), &into, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN) {
    keep_from_blocking();
    [[maybe_unused]] const ssize_t done = read(event_fd_.get(), &count, sizeof count);
  }
  {
    const std::lock_guard lock(queues_mutex_);
    // A thread that takes events is awake already.
    for (CompletionQueue* each : queues_)
      if (each->look_for_arrivals()) add(each);
  }
  software::CompletionQueueBase* taken = next_event();
  if (taken == nullptr) return EAGAIN;
  *queue = taken->as_cq();
  *queue_context = taken->cq_context;
  return 0;
}

}  // namespace rdmakit::shm
