// How a lane sleeps, and what wakes it: a part of its loop.
#pragma once

#include <poll.h>

#include <algorithm>
#include <ctime>

#include "lane/working_lane.h"

namespace rdmakit::volume {

// ---- hot path begins: see lane_loop.h ----

template <typename Work>
void WorkingLane<Work>::sleep(uint64_t now) {
  looked_on_ = false;
  statistics_.spin_limit.set(for_completions_.usual());
  if (awaited() > 0) {
    // Armed first, then looked at once more: a completion between the two would raise no event.
    if (!options_.channel) return;
    if (const int error = device_lost_ ? 0 : ibv_req_notify_cq(rdma_.cq(), 0); error != 0)
      return lose_device("ibv_req_notify_cq", error);
    if (rdma_.poll() > 0) {
      look_ |= held_off_;
      if (is_open()) work_.finish(now);
      wait_is_over(false);
      return;
    }
  }
  if (options_.backup != nullptr) {
    options_.backup->arm();
    if (rdma_.poll_backup() > 0) {
      look_ |= held_off_;
      if (is_open()) work_.finish(now);
      return;
    }
  }
  statistics_.sleeps.add();
  if constexpr (Work::kServes) {
    if (const uint64_t pause = is_open() ? work_.front().pause(now) : 0; pause != 0) {
      wait(false, pause);
      look_ = true;
      return;
    }
  }
  held_off_ = holds_off();
  if (held_off_ && wait(false, kHoldOff)) return;
  wait(true, timeout(now));
}

// The kernel asks again soon while it swaps: then one system call both waits and receives, and ppoll is
// spared.
template <typename Work>
bool WorkingLane<Work>::may_block(uint64_t timeout) const {
  if constexpr (Work::kServes)
    return timeout > Work::kBlockTime && work_.front().may_block() && awaited() == 0 &&
           options_.backup == nullptr;
  return false;
}

// The sleep leaves no state that would cost a sender to an awake lane (an epoll set would be notified of each
// request), and none to update when the awaited events change. Without `requests` the client cannot wake the
// lane. False: nothing came in time.
template <typename Work>
bool WorkingLane<Work>::wait(bool requests, uint64_t timeout) {
  const bool hears = requests && is_open();
  int client = -1;  // a negative descriptor is none
  short wanted = 0;
  if constexpr (Work::kServes) {
    if (hears && may_block(timeout)) {
      if (work_.front().block()) return true;
      if (timeout != kForever) timeout -= Work::kBlockTime;
    }
    const auto& front = work_.front();
    if (hears) client = front.descriptor();
    wanted = static_cast<short>((front.wants_input() ? POLLIN : 0) | (front.wants_output() ? POLLOUT : 0));
  }
  // Only then it is armed. Each descriptor is looked up, looked at and queued on.
  const bool completions = options_.channel && !device_lost_ && awaited() > 0;
  pollfd descriptors[] = {
      {wake_.get(), POLLIN, 0}, {completions ? options_.channel->fd : -1, POLLIN, 0}, {client, wanted, 0}};
  const timespec limit{static_cast<time_t>(timeout / kSecond), static_cast<long>(timeout % kSecond)};
  if (ppoll(descriptors, 3, timeout == kForever ? nullptr : &limit, nullptr) <= 0) return false;
  if (descriptors[0].revents != 0) take_wake();
  if (descriptors[1].revents != 0) take_event();
  if constexpr (Work::kServes) {
    if (descriptors[2].revents == 0) return true;
    look_ = true;
    if ((descriptors[2].revents & (POLLERR | POLLHUP)) != 0 && !work_.front().wants_input())
      // Both directions are gone, so the answers have no receiver.
      work_.front().drop("connection reset");
  }
  return true;
}

template <typename Work>
uint64_t WorkingLane<Work>::timeout(uint64_t now) const {
  if (work_.waits_for_page() || (options_.backup != nullptr && options_.backup->waits())) return kPageRetry;
  uint64_t next = kForever;
  const auto consider = [&next](uint64_t deadline) {
    if (deadline != 0) next = std::min(next, deadline);
  };
  consider(rdma_.next_deadline());
  work_.deadlines(consider);
  if (is_open()) consider(farewell_);
  // The backup's thread may hang in a system call, and only we look.
  if (rdma_.outstanding_backup() > 0) consider(now + options_.backup->look_interval());
  consider(stop_at_.load(std::memory_order_relaxed));
  if (next == kForever) return kForever;
  // Whole milliseconds, so that rate-limited work runs in batches.
  return next <= now ? 0 : ((next - now) / kMillisecond + 1) * kMillisecond;
}

// ---- hot path ends ----

}  // namespace rdmakit::volume
