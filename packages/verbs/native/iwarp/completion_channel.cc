#include "iwarp/completion_channel.h"

#include <sys/eventfd.h>

#include <cerrno>

#include "iwarp/completion_queue.h"

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
  CompletionQueue* before = nullptr;
  for (CompletionQueue* at = first_; at != nullptr; before = at, at = at->next_with_events) {
    if (at != queue) continue;
    (before == nullptr ? first_ : before->next_with_events) = queue->next_with_events;
    if (last_ == queue) last_ = before;
    break;
  }
  queue->events = 0;
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
  if (queue->events++ == 0) {
    queue->next_with_events = nullptr;
    (last_ == nullptr ? first_ : last_->next_with_events) = queue;
    last_ = queue;
  }
  // A thread that is moving data inside take() finds the event without a system call.
  if (takers_ == 0) set_readable(true);
}

int CompletionChannel::take(ibv_cq** queue, void** queue_context) {
  std::unique_lock lock(mutex_);
  if (first_ == nullptr) {
    takers_++;
    lock.unlock();
    poll_set_.progress();
    lock.lock();
    takers_--;
  }
  CompletionQueue* taken = first_;
  if (taken != nullptr) {
    taken->events--;
    taken->events_taken++;
    first_ = taken->next_with_events;
    if (first_ == nullptr) last_ = nullptr;
    if (taken->events > 0) {  // to the end: queues take turns
      taken->next_with_events = nullptr;
      (last_ == nullptr ? first_ : last_->next_with_events) = taken;
      last_ = taken;
    }
  }
  set_readable(first_ != nullptr);
  if (taken == nullptr) return EAGAIN;
  *queue = taken->as_cq();
  *queue_context = taken->cq_context;
  return 0;
}
// End of hot path.

}  // namespace rdmakit::iwarp
