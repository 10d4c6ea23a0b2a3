#include "shm/completion/completion_channel.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <cerrno>

#include "base/epoll.h"
#include "shm/completion/completion_queue.h"

namespace rdmakit::shm {
namespace {

enum Member : uint32_t { kOwn, kPeers };

// Room in a counter that a peer may have filled, so that those who write to it ring it. While it is full, a
// read finds something to take, unless somebody else has just taken it: it is not to sleep then.
void empty(int event_fd) {
  uint64_t count;
  const iovec into{&count, sizeof count};
  if (preadv2(event_fd, &into, 1, -1, RWF_NOWAIT) >= 0 || errno == EAGAIN) return;
  // Before Linux 5.8 this does not do it for an eventfd.
  if ((fcntl(event_fd, F_GETFL) & O_NONBLOCK) == 0) fcntl(event_fd, F_SETFL, O_NONBLOCK);
  [[maybe_unused]] const ssize_t done = read(event_fd, &count, sizeof count);
}

}  // namespace

CompletionChannel::CompletionChannel(ibv_context* context)
    : ibv_comp_channel{},
      poll_set_(epoll_create1(EPOLL_CLOEXEC)),
      own_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  this->context = context;
  fd = poll_set_.get();
  refcnt = 0;
  // Edges: nothing has to be read, and 2^64 rings fit into a counter. An edge is forgotten when the
  // descriptor is not ready by the time somebody asks, as after a read by a peer: with EPOLLOUT it always is.
  const auto watch = [this](const UniqueFd& member, uint32_t events, Member which) {
    return epoll_watch(fd, EPOLL_CTL_ADD, member.get(), events | EPOLLET, {.u32 = which}) == 0;
  };
  ok_ =
      poll_set_ && own_ && peers_ && watch(own_, EPOLLIN, kOwn) && watch(peers_, EPOLLIN | EPOLLOUT, kPeers);
  if (ok_) silence();
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

void CompletionChannel::ring() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t done = write(own_.get(), &one, sizeof one);
}

// Not before the next ring is the descriptor readable again.
void CompletionChannel::silence() {
  epoll_event events[2];
  const int count = epoll_wait(poll_set_.get(), events, 2, 0);
  for (int i = 0; i < count; i++)
    if (events[i].data.u32 == kPeers && (events[i].events & EPOLLOUT) == 0) empty(peers_.get());
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
  silence();
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
