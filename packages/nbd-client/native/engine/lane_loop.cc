// The loop of a lane's thread, and what it sleeps for.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "engine/lane.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMillisecond;
constexpr int kPageRetryMs = 1;
constexpr uint64_t kLookInterval = 2'000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}
}  // namespace

// ---- hot path begins ----
// Rules: no allocation, no log, no lock, no system call that is not the work itself (recv, sendmsg, the
// device's own, and epoll_wait when there is nothing to do). Everything used here was made before.

void Lane::loop() {
  for (;;) {
    // The epoch before the commands: what was commanded before it was raised is done when it is acknowledged.
    const uint64_t epoch = volume_.epoch();
    if (!commands_.empty()) take_commands();
    if (rdma_.enter(epoch) && epoch != acknowledged_epoch_.load(std::memory_order_relaxed))
      acknowledge(epoch);
    now_ = clock_.now();
    rdma_.adopt_failures(now_);
    bool moved = rdma_.poll() > 0;
    moved |= rdma_.poll_backup() > 0;
    if (connection_.is_open()) {
      const bool look = look_ || connection_.input_full();
      if (look) looked_at_ = now_;
      moved |= connection_.step(now_, look);
      look_ = connection_.more_input();
      rdma_.flush(now_);
      moved |= connection_.send(now_);
    }
    if (refill_ != nullptr) moved |= step_refill();
    rdma_.check_deadlines(now_);
    if (!connection_.is_open() && connection_.socket() >= 0) end_connection();
    if (yielding_ && (!connection_.is_open() || connection_.may_part())) hand_over();
    if (state_.load(std::memory_order_relaxed) == State::draining && connection_.idle() &&
        rdma_.outstanding() == 0 && rdma_.outstanding_backup() == 0)
      become_idle();
    if (stop_at_.load(std::memory_order_relaxed) != 0) {
      if (may_exit(now_)) break;
      moved |= announce_stop();
    }

    if (moved) {
      if (waiter_.moved(now_) && !waiter_.slept()) statistics_.spins.add();
      continue;
    }
    // Completions are worth spinning for. A request is not: its sender must be scheduled first, and a
    // sleeping lane leaves it the core (4 KiB READ at depth 1, two cores: p99 11 µs instead of 56).
    const bool spins =
        rdma_.outstanding() > 0 || (options_.wait_mode == WaitMode::poll && connection_.is_open());
    if (spins && waiter_.spin(now_)) {
      // Requests may come meanwhile; each look is a system call.
      look_ = now_ - looked_at_ >= kLookInterval;
      relax();
      continue;
    }
    sleep(now_);
  }
  if (connection_.socket() >= 0) end_connection();
}

void Lane::sleep(uint64_t now) {
  waiter_.sleeping();
  statistics_.spin_limit.set(waiter_.limit());
  if (rdma_.outstanding() > 0) {
    // Armed first, then looked at once more: a completion between the two would raise no event.
    if (!options_.channel || ibv_req_notify_cq(rdma_.cq(), 0) != 0) return;
    if (rdma_.poll() > 0) {
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  if (options_.backup != nullptr) {
    options_.backup->arm();
    if (rdma_.poll_backup() > 0) {
      if (connection_.is_open()) connection_.send(now);
      return;
    }
  }
  watch_socket();
  statistics_.sleeps.add();
  epoll_event events[4];
  const int count = epoll_wait(epoll_.get(), events, 4, timeout_ms(now));
  for (int i = 0; i < count; i++) {
    const int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      uint64_t value;
      [[maybe_unused]] const ssize_t ignored = read(fd, &value, sizeof value);
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

void Lane::operation_acknowledged(Operation& operation) {
  if (refill_ == nullptr) connection_.operation_acknowledged(operation, now_);
}

void Lane::operation_decided(Operation& operation, bool succeeded) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_decided(operation, succeeded);
  } else if (refill_ != nullptr) {
    refill_->operation_decided(operation, succeeded);
  } else {
    connection_.operation_decided(operation, succeeded, now_);
  }
}

void Lane::operation_over(Operation& operation) {
  if (catch_up_ != nullptr && BackupCatchUp::owns(operation)) {
    catch_up_->operation_over(operation);
  } else if (refill_ != nullptr) {
    refill_->operation_over(operation);
  } else {
    connection_.operation_over(operation);
  }
}

bool Lane::may_move(const Operation& operation) {
  return refill_ == nullptr && connection_.may_move(operation);
}

// ---- hot path ends ----

}  // namespace rdmakit::nbd
