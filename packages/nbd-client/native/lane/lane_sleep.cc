// How a lane sleeps, and what wakes it.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "lane/lane.h"

namespace rdmakit::nbd {

namespace {
constexpr uint64_t kPageRetry = kMillisecond;
constexpr uint64_t kForever = UINT64_MAX;
}  // namespace

// ---- hot path begins: see lane_loop.cc ----

void Lane::sleep(uint64_t now) {
  waiter_.sleeping();
  request_waiter_.sleeping();
  statistics_.spin_limit.set(waiter_.limit());
  if (awaited() > 0 || rdma_.outstanding_backup() > 0) request_waiter_.sleeps_for_completions();
  if (awaited() > 0) {
    // Armed first, then looked at once more: a completion between the two would raise no event.
    if (!options_.channel) return;
    if (const int error = device_lost_ ? 0 : ibv_req_notify_cq(rdma_.cq(), 0); error != 0)
      return lose_device("ibv_req_notify_cq", error);
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
  held_off_ = holds_off();
  if (held_off_ && wait(false, kHoldOff)) return;
  wait(true, timeout(now));
}

// The kernel asks again soon while it swaps: then recv(2) alone both waits and receives, and ppoll is spared.
bool Lane::dozes(uint64_t timeout) const {
  return timeout > Connection::kDoze && connection_.dozes() && awaited() == 0 && options_.backup == nullptr;
}

// Nothing is left behind that would cost who sends to an awake lane (an epoll set would have itself told of
// each request), nor has to be told when the wishes change. Without `requests` the client is not heard.
// False: nothing came in time.
bool Lane::wait(bool requests, uint64_t timeout) {
  const bool hears = requests && connection_.is_open();
  if (hears && dozes(timeout)) {
    if (connection_.doze()) return true;
    if (timeout != kForever) timeout -= Connection::kDoze;
  }
  const int wanted = (connection_.wants_input() ? POLLIN : 0) | (connection_.wants_output() ? POLLOUT : 0);
  // Only then it is armed. Each descriptor is looked up, looked at and queued on.
  const bool completions = options_.channel && !device_lost_ && awaited() > 0;
  // A negative descriptor is none.
  pollfd descriptors[] = {{wake_.get(), POLLIN, 0},
                          {completions ? options_.channel->fd : -1, POLLIN, 0},
                          {hears ? connection_.socket() : -1, static_cast<short>(wanted), 0}};
  const timespec limit{static_cast<time_t>(timeout / kSecond), static_cast<long>(timeout % kSecond)};
  if (ppoll(descriptors, 3, timeout == kForever ? nullptr : &limit, nullptr) <= 0) return false;
  if (descriptors[0].revents != 0) take_wake();
  if (descriptors[1].revents != 0) take_event();
  if (descriptors[2].revents != 0) {
    look_ = true;
    if ((descriptors[2].revents & (POLLERR | POLLHUP)) != 0 && !connection_.wants_input())
      // Both directions are gone, and with them whoever would take the answers.
      connection_.drop("connection reset");
  }
  return true;
}

void Lane::take_wake() {
  uint64_t value;
  [[maybe_unused]] const ssize_t ignored = read(wake_.get(), &value, sizeof value);
}

uint64_t Lane::timeout(uint64_t now) const {
  if (connection_.waits_for_page() || (refill_ != nullptr && refill_->waits_for_page()) ||
      (options_.backup != nullptr && options_.backup->waits()))
    return kPageRetry;
  uint64_t next = kForever;
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
  if (next == kForever) return kForever;
  // Whole milliseconds, so that what has a rate comes in bunches.
  return next <= now ? 0 : ((next - now) / kMillisecond + 1) * kMillisecond;
}

// The queue is armed once, so there is one event. Were there another, the channel would stay readable.
void Lane::take_event() {
  const DataPathVerbs* verbs = options_.cq.handle()->verbs;
  ibv_cq* cq;
  void* context;
  const int error = verbs->get_cq_event(options_.channel.get(), &cq, &context);
  if (error == 0)
    verbs->ack_cq_events(options_.cq.get(), 1);
  else if (error != EAGAIN && error != EINTR)
    lose_device("ibv_get_cq_event", error);
}

// ---- hot path ends ----

// A queue that cannot be armed, or whose channel cannot be read, would let the lane spin, or sleep for ever.
// All that it has under way is decided without the device.
void Lane::lose_device(const char* call, int error) {
  device_lost_ = true;
  char reason[64];
  snprintf(reason, sizeof reason, "its device is gone: %s, errno %d", call, error);
  rdma_.fail_all(reason);
}

}  // namespace rdmakit::nbd
