// How a lane sleeps, and what wakes it.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "engine/lane.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMillisecond;
constexpr int kPageRetryMs = 1;
}  // namespace

// ---- hot path begins: see lane_loop.cc ----

void Lane::sleep(uint64_t now) {
  waiter_.sleeping();
  request_waiter_.sleeping();
  statistics_.spin_limit.set(waiter_.limit());
  if (rdma_.outstanding() > 0) {
    // Armed first, then looked at once more: a completion between the two would raise no event.
    if (!options_.channel || ibv_req_notify_cq(rdma_.cq(), 0) != 0) return;
    if (rdma_.poll() > 0) {
      look_ |= held_off_;
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  if (options_.backup != nullptr) {
    options_.backup->arm();
    if (rdma_.poll_backup() > 0) {
      look_ |= held_off_;
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  statistics_.sleeps.add();
  if (holds_off() && await_completion()) return;
  watch_socket();
  epoll_event events[4];
  const int count = epoll_wait(epoll_.get(), events, 4, timeout_ms(now));
  for (int i = 0; i < count; i++) {
    const int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      take_wake();
    } else if (options_.channel && fd == options_.channel->fd) {
      drain_channel();
    } else {
      look_ = true;
      if ((events[i].events & (EPOLLERR | EPOLLHUP)) != 0 && !connection_.wants_input())
        // Both directions are gone, and with them whoever would take the answers.
        connection_.drop("connection reset");
    }
  }
}

// Deaf to the client meanwhile: see kBusy. False: no completion came in time.
bool Lane::await_completion() {
  held_off_ = true;
  pollfd descriptors[] = {{wake_.get(), POLLIN, 0}, {options_.channel->fd, POLLIN, 0}};
  const timespec limit{0, kHoldOff};
  if (ppoll(descriptors, 2, &limit, nullptr) <= 0) return false;
  if (descriptors[0].revents != 0) take_wake();
  if (descriptors[1].revents != 0) drain_channel();
  return true;
}

void Lane::take_wake() {
  uint64_t value;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &value, sizeof value);
}

int Lane::timeout_ms(uint64_t now) const {
  if (connection_.waits_for_page() || (refill_ != nullptr && refill_->waits_for_page()) ||
      (options_.backup != nullptr && options_.backup->waits()))
    return kPageRetryMs;
  uint64_t next = UINT64_MAX;
  const auto consider = [&next](uint64_t deadline) {
    if (deadline != 0) next = std::min(next, deadline);
  };
  consider(rdma_.next_deadline());
  consider(connection_.linger_deadline());
  consider(connection_.stall_deadline());
  consider(connection_.next_turn());
  if (connection_.is_open()) consider(farewell_);
  if (refill_ != nullptr) consider(refill_->next_step());
  if (catch_up_ != nullptr) consider(catch_up_->next_step());
  // The backup's thread may hang in a system call, and only we look.
  if (rdma_.outstanding_backup() > 0) consider(now + kSecond);
  consider(stop_at_.load(std::memory_order_relaxed));
  if (next == UINT64_MAX) return -1;
  return next <= now ? 0 : static_cast<int>(std::min<uint64_t>((next - now) / kMillisecond + 1, 60'000));
}

// Level-triggered, changed only when the wish changes: EPOLLOUT while a reply is stuck, no EPOLLIN
// while there is no room.
void Lane::watch_socket() {
  if (!connection_.is_open()) return;
  const int socket = connection_.socket();
  const uint32_t wanted =
      (connection_.wants_input() ? EPOLLIN : 0u) | (connection_.wants_output() ? EPOLLOUT : 0u);
  if (watched_ == socket && watched_events_ == wanted) return;
  epoll_event event{};
  event.events = wanted;
  event.data.fd = socket;
  epoll_ctl(epoll_.get(), watched_ == socket ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &event);
  watched_ = socket;
  watched_events_ = wanted;
}

void Lane::drain_channel() {
  const DataPathVerbs* verbs = options_.cq.handle()->verbs;
  ibv_cq* cq;
  void* context;
  unsigned int events = 0;
  while (verbs->get_cq_event(options_.channel.get(), &cq, &context) == 0) events++;
  if (events > 0) verbs->ack_cq_events(options_.cq.get(), events);
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
