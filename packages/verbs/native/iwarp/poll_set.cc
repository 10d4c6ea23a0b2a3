#include "iwarp/poll_set.h"

#include <array>
#include <cerrno>

#include "base/epoll.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

// Up to this many sockets are tried without asking which is readable: the receive that is needed anyway then
// needs no epoll_wait, and one that finds nothing costs no more than that would.
constexpr size_t kSocketsTriedDirectly = 2;

PollSet::PollSet() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

// A token is a slot and its generation, so that an event that was fetched before its queue pair was
// removed cannot reach the next user of the slot.
uint64_t PollSet::add(QueuePair* queue_pair, int fd, uint32_t events) {
  const std::lock_guard lock(mutex_);
  uint32_t number;
  if (free_.empty()) {
    number = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  Slot& slot = slots_[number];
  slot.queue_pair = queue_pair;
  slot.generation = (slot.generation + 1) & 0x3fffffff;
  const uint64_t token = uint64_t{slot.generation} << 32 | (number + 1);
  if (const int error = epoll_watch(epoll_.get(), EPOLL_CTL_ADD, fd, events, {.u64 = token}); error != 0) {
    slot.queue_pair = nullptr;
    free_.push_back(number);
    errno = error;
    return 0;
  }
  return token;
}

void PollSet::change(uint64_t token, int fd, uint32_t events) {
  epoll_watch(epoll_.get(), EPOLL_CTL_MOD, fd, events, {.u64 = token});
}

void PollSet::mute(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void PollSet::remove(uint64_t token, int fd) {
  if (token == 0) return;
  const std::lock_guard lock(mutex_);
  if (fd >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  const uint32_t number = static_cast<uint32_t>(token & 0xffffffff) - 1;
  slots_[number].queue_pair = nullptr;
  free_.push_back(number);
}

int PollSet::add_foreign(uint64_t token, int fd, uint32_t events) {
  return epoll_watch(epoll_.get(), EPOLL_CTL_ADD, fd, events, {.u64 = token | kForeign});
}

int PollSet::change_foreign(uint64_t token, int fd, uint32_t events) {
  return epoll_watch(epoll_.get(), EPOLL_CTL_MOD, fd, events, {.u64 = token | kForeign});
}

// Hot path.
int PollSet::wait(epoll_event* events, int capacity, int timeout_ms) {
  return epoll_wait(epoll_.get(), events, capacity, timeout_ms);
}

void PollSet::dispatch(const epoll_event* events, int count) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count; i++) {
    const uint64_t token = events[i].data.u64;
    if (token & kForeign) continue;
    const size_t number = static_cast<size_t>(token & 0xffffffff) - 1;
    if (number >= slots_.size()) continue;
    const Slot& slot = slots_[number];
    if (slot.queue_pair == nullptr || slot.generation != token >> 32) continue;
    slot.queue_pair->progress(events[i].events, QueuePair::Contention::wait);
  }
}

void PollSet::progress() {
  {
    const std::lock_guard lock(mutex_);
    if (slots_.size() - free_.size() <= kSocketsTriedDirectly) {
      for (const Slot& slot : slots_) {
        if (slot.queue_pair == nullptr) continue;
        slot.queue_pair->progress(EPOLLIN | EPOLLOUT, QueuePair::Contention::wait);
      }
      return;
    }
  }
  std::array<epoll_event, 32> events;
  const int count = wait(events.data(), static_cast<int>(events.size()), 0);
  if (count > 0) dispatch(events.data(), count);
}
// End of hot path.

}  // namespace rdmakit::iwarp
