#include "iwarp/completion/completion_channel.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "iwarp/completion/completion_queue.h"

namespace rdmakit::iwarp {

CompletionChannel::CompletionChannel(ibv_context* context)
    : ibv_comp_channel{}, event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  this->context = context;
  fd = poll_set_.fd();
  refcnt = 0;
  if (ok()) poll_set_.add_foreign(0, event_fd_.get(), EPOLLIN);
}

void CompletionChannel::attach() {
  const std::lock_guard lock(mutex_);
  refcnt++;
}

bool CompletionChannel::in_use() {
  const std::lock_guard lock(mutex_);
  return refcnt > 0;
}

void CompletionChannel::detach(CompletionQueue* queue) {
  const std::lock_guard lock(mutex_);
  refcnt--;
  events_.remove(queue);
}

// Hot path.
void CompletionChannel::set_readable(bool readable) {
  if (readable == readable_) return;
  readable_ = readable;
  uint64_t count = 1;
  [[maybe_unused]] const ssize_t done =
      readable ? write(event_fd_.get(), &count, sizeof count) : read(event_fd_.get(), &count, sizeof count);
}

void CompletionChannel::post(CompletionQueue* queue) {
  const std::lock_guard lock(mutex_);
  events_.add(queue);
  // A thread that is moving data inside take() finds the event without a system call.
  if (takers_ == 0) set_readable(true);
}

int CompletionChannel::take(ibv_cq** queue, void** queue_context) {
  std::unique_lock lock(mutex_);
  if (events_.empty()) {
    takers_++;
    lock.unlock();
    poll_set_.progress();
    lock.lock();
    takers_--;
  }
  software::CompletionQueueBase* taken = events_.take();
  set_readable(!events_.empty());
  if (taken == nullptr) return EAGAIN;
  *queue = taken->as_cq();
  *queue_context = taken->cq_context;
  return 0;
}
// End of hot path.

}  // namespace rdmakit::iwarp
