#include "shm/completion/completion_queue.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "shm/completion/completion_channel.h"
#include "shm/device.h"
#include "shm/mapping/layout.h"
#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {
namespace {

// Up to this many queue pairs are looked at in every poll, each one cache line that is in the first
// level cache while nothing arrives. Of more, every poll takes as many, and the recently busy ones.
constexpr size_t kLookedAt = 32;

}  // namespace

CompletionQueue::CompletionQueue(ibv_context* context, int entries, void* cq_context,
                                 CompletionChannel* channel, uint64_t flags)
    : CompletionQueueBase(context, cq_context, channel),
      channel_(channel),
      stamped_(flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)),
      ring_(entries, stamped_),
      armed_(kArmedNot) {
  cqe = ring_.capacity();
  fill_extended(flags);
  if (channel_ != nullptr) channel_->attach(this);
}

CompletionQueue::~CompletionQueue() {
  ProgressThread::instance().cancel(overrun_errand_);
  if (channel_ == nullptr) return;
  channel_->detach(this);
  wait_for_acknowledgements();
}

void CompletionQueue::attach(QueuePair* queue_pair) {
  {
    const std::lock_guard lock(members_lock_);
    members_.push_back(queue_pair);
    const std::lock_guard ring_lock(ring_lock_);
    if (queue_pair->recv_cq == as_cq() && armed_ != kArmedNot) queue_pair->arm(armed_);
  }
  if (overrun_.load()) queue_pair->fail_later(Failure::fatal(EOVERFLOW));
  // A message may have arrived before the arming.
  if (look_for_arrivals()) channel_->post(this);
}

void CompletionQueue::detach(QueuePair* queue_pair) {
  const std::lock_guard lock(members_lock_);
  std::erase(members_, queue_pair);
  std::replace(recent_.begin(), recent_.end(), queue_pair, static_cast<QueuePair*>(nullptr));
}

void CompletionQueue::forget(const std::atomic<uint32_t>* polled) {
  const std::lock_guard lock(ring_lock_);
  ring_.forget(polled);
}

void CompletionQueue::request_notification(bool solicited_only) {
  const std::lock_guard lock(members_lock_);
  uint32_t armed;
  {
    const std::lock_guard ring_lock(ring_lock_);
    // Asking for less than was asked before changes nothing (InfiniBand §11.4.2.2).
    armed_ = std::max(armed_, solicited_only ? kArmedSolicited : kArmedAny);
    armed = armed_;
  }
  look_at_all_ = true;
  if (channel_ == nullptr) return;
  for (QueuePair* member : members_) {
    if (member->recv_cq == as_cq()) member->arm(armed);
  }
}

bool CompletionQueue::look_for_arrivals() {
  if (channel_ == nullptr) return false;
  const std::lock_guard lock(members_lock_);
  const std::lock_guard ring_lock(ring_lock_);
  if (armed_ == kArmedNot) return false;
  for (const QueuePair* member : members_) {
    // A peer that disarmed us published something after the arming. It raises its event even if a poll has
    // taken it meanwhile (ibv_req_notify_cq(3)); otherwise the queue would not be armed again.
    if (member->recv_cq == as_cq() &&
        (member->was_disarmed() || member->has_arrival(armed_ == kArmedSolicited))) {
      armed_ = kArmedNot;
      return true;
    }
  }
  return false;
}

// Hot path: no allocation, and no system call unless a thread sleeps.
void CompletionQueue::push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled,
                           uint32_t position) {
  bool notify = false;
  {
    const std::lock_guard lock(ring_lock_);
    if (ring_.full()) [[unlikely]] {
      if (!overrun_.exchange(true, std::memory_order_relaxed))
        ProgressThread::instance().call(overrun_errand_);
    } else {
      if (uint64_t* time = ring_.next_stamp(); time != nullptr) [[unlikely]]
        *time = now_ns();
      ring_.add(completion, polled, position);
    }
    notify = armed_ == kArmedAny || (armed_ == kArmedSolicited && solicited);
    if (notify) armed_ = kArmedNot;
  }
  if (notify && channel_ != nullptr) channel_->post(this);
}

int CompletionQueue::pop(int capacity, ibv_wc* completions, uint64_t* time) {
  if (ring_.empty()) return 0;
  const std::lock_guard lock(ring_lock_);
  return ring_.take(capacity, completions, time);
}

int CompletionQueue::poll(int capacity, ibv_wc* completions, uint64_t* time) {
  if (capacity <= 0) return 0;
  if (overrun_.load(std::memory_order_relaxed)) [[unlikely]]
    return -1;
  int count = pop(capacity, completions, time);
  if (count == capacity) return count;
  const std::lock_guard lock(members_lock_);
  if (waiting.load(std::memory_order_relaxed) != 0) [[unlikely]]
    try_waiting();
  return count + scan(capacity - count, completions + count, time);
}

int CompletionQueue::scan(int capacity, ibv_wc* completions, uint64_t* time) {
  const size_t size = members_.size();
  const bool all = size <= kLookedAt || look_at_all_;
  const size_t looks = all ? size : kLookedAt;
  int count = 0;
  if (!all) {
    for (QueuePair* member : recent_) {
      if (member == nullptr || count == capacity) continue;
      const int taken = member->consume(capacity - count, completions + count);
      count += taken;
      if (time != nullptr && taken > 0) *time = member->arrival_time();
    }
  }
  for (size_t i = 0; i < looks; i++) {
    if (count == capacity) return count;
    if (next_ >= size) next_ = 0;
    QueuePair* member = members_[next_++];
    if (member->recv_cq != as_cq()) continue;
    const int taken = member->consume(capacity - count, completions + count);
    count += taken;
    if (taken == 0) continue;
    if (time != nullptr) *time = member->arrival_time();
    if (!all && std::find(recent_.begin(), recent_.end(), member) == recent_.end()) {
      recent_[next_recent_++ % recent_.size()] = member;
    }
  }
  look_at_all_ = false;
  return count;
}
// End of hot path.

// The queue is broken: completions are missing from it. Its queue pairs cannot continue either.
void CompletionQueue::tell_overrun() {
  async_events().emit({IBV_EVENT_CQ_ERR, reinterpret_cast<uint64_t>(as_cq())});
  {
    const std::lock_guard lock(members_lock_);
    for (QueuePair* member : members_) member->fail_later(Failure::fatal(EOVERFLOW));
  }
  if (channel_ != nullptr) channel_->post(this);  // a sleeper polls, and sees
}

int CompletionQueue::resize(int entries) {
  try {
    software::CompletionRing<uint64_t> ring(entries, stamped_);
    const std::lock_guard lock(ring_lock_);
    if (overrun_.load(std::memory_order_relaxed)) return EINVAL;
    if (!ring_.move_to(ring, static_cast<uint32_t>(entries))) return EINVAL;
    cqe = ring_.capacity();
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

void CompletionQueue::try_waiting() {
  for (QueuePair* member : members_) {
    if (member->send_cq == as_cq()) member->progress_from_poll();
  }
}

}  // namespace rdmakit::shm
