#include "shm/completion_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "shm/completion_channel.h"
#include "shm/device.h"
#include "shm/layout.h"
#include "shm/queue_pair.h"

namespace rdmakit::shm {
namespace {

// Up to this many queue pairs are looked at in every poll, each one cache line that is in the first
// level cache while nothing arrives. Of more, every poll takes as many, and the recently busy ones.
constexpr size_t kLookedAt = 32;

}  // namespace

CompletionQueue::CompletionQueue(ibv_context* context, int entries, void* cq_context,
                                 CompletionChannel* channel, uint64_t flags)
    : ibv_cq_ex{},
      channel_(channel),
      stamped_(flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)),
      armed_(kArmedNot) {
  this->context = context;
  this->channel = channel;
  this->cq_context = cq_context;
  const uint32_t capacity = std::bit_ceil(static_cast<uint32_t>(std::max(entries, 1)));
  cqe = static_cast<int>(capacity);
  mask_ = capacity - 1;
  ring_ = std::make_unique_for_overwrite<Entry[]>(capacity);
  if (stamped_) times_ = std::make_unique_for_overwrite<uint64_t[]>(capacity);
  fill_extended(flags);
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
  if (channel_ != nullptr) channel_->attach(this);
}

CompletionQueue::~CompletionQueue() {
  ProgressThread::instance().cancel(overrun_errand_);
  if (channel_ != nullptr) {
    channel_->detach(this);
    wait_for_acknowledgements();
  }
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

// Blocks until all events that were taken have been acknowledged, as ibv_destroy_cq(3) does.
void CompletionQueue::wait_for_acknowledgements() {
  pthread_mutex_lock(&mutex);
  while (comp_events_completed != events_taken) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

void CompletionQueue::acknowledge(unsigned count) {
  pthread_mutex_lock(&mutex);
  comp_events_completed += count;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

void CompletionQueue::attach(QueuePair* queue_pair) {
  {
    const std::lock_guard lock(members_lock_);
    members_.push_back(queue_pair);
    const std::lock_guard ring_lock(ring_lock_);
    if (queue_pair->recv_cq == verbs() && armed_ != kArmedNot) queue_pair->arm(armed_);
  }
  if (overrun_.load()) queue_pair->fail_later(Failure::fatal(EOVERFLOW));
  // A message may have come before the arming.
  if (look_for_arrivals()) channel_->post(this);
}

void CompletionQueue::detach(QueuePair* queue_pair) {
  const std::lock_guard lock(members_lock_);
  std::erase(members_, queue_pair);
  std::replace(recent_.begin(), recent_.end(), queue_pair, static_cast<QueuePair*>(nullptr));
}

void CompletionQueue::forget(const std::atomic<uint32_t>* polled) {
  const std::lock_guard lock(ring_lock_);
  const uint32_t end = tail_.load(std::memory_order_relaxed);
  uint32_t kept = head_.load(std::memory_order_relaxed);
  for (uint32_t i = kept; i != end; i++) {
    if (ring_[i & mask_].polled == polled) continue;
    if (stamped_) times_[kept & mask_] = times_[i & mask_];
    ring_[kept++ & mask_] = ring_[i & mask_];
  }
  tail_.store(kept, std::memory_order_release);
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
    if (member->recv_cq == verbs()) member->arm(armed);
  }
}

bool CompletionQueue::look_for_arrivals() {
  if (channel_ == nullptr) return false;
  const std::lock_guard lock(members_lock_);
  const std::lock_guard ring_lock(ring_lock_);
  if (armed_ == kArmedNot) return false;
  for (const QueuePair* member : members_) {
    // A peer that disarmed us brought something after the arming. It raises its event even if a poll
    // has taken it meanwhile (ibv_req_notify_cq(3)); without one nobody would arm again.
    if (member->recv_cq == verbs() &&
        (member->was_disarmed() || member->has_arrival(armed_ == kArmedSolicited))) {
      armed_ = kArmedNot;
      return true;
    }
  }
  return false;
}

// Hot path: no allocation, no system call unless somebody sleeps.
void CompletionQueue::push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled,
                           uint32_t position) {
  bool notify = false;
  {
    const std::lock_guard lock(ring_lock_);
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_relaxed) > mask_) [[unlikely]] {
      if (!overrun_.exchange(true, std::memory_order_relaxed))
        ProgressThread::instance().call(overrun_errand_);
    } else {
      ring_[tail & mask_] = {completion, polled, position};
      if (stamped_) [[unlikely]]
        times_[tail & mask_] = now_ns();
      tail_.store(tail + 1, std::memory_order_release);
    }
    notify = armed_ == kArmedAny || (armed_ == kArmedSolicited && solicited);
    if (notify) armed_ = kArmedNot;
  }
  if (notify && channel_ != nullptr) channel_->post(this);
}

int CompletionQueue::pop(int capacity, ibv_wc* completions, uint64_t* time) {
  if (head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire)) return 0;
  const std::lock_guard lock(ring_lock_);
  const uint32_t head = head_.load(std::memory_order_relaxed);
  const uint32_t ready = tail_.load(std::memory_order_relaxed) - head;
  const uint32_t count = std::min(ready, static_cast<uint32_t>(capacity));
  for (uint32_t i = 0; i < count; i++) {
    const Entry& entry = ring_[(head + i) & mask_];
    completions[i] = entry.completion;
    entry.polled->store(entry.position, std::memory_order_release);
  }
  if (time != nullptr && count > 0) [[unlikely]]
    *time = times_[head & mask_];
  head_.store(head + count, std::memory_order_release);
  return static_cast<int>(count);
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
    if (member->recv_cq != verbs()) continue;
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

// The queue is broken: completions are missing from it. Whoever feeds it cannot go on either.
void CompletionQueue::tell_overrun() {
  async_events().emit({IBV_EVENT_CQ_ERR, reinterpret_cast<uint64_t>(verbs())});
  {
    const std::lock_guard lock(members_lock_);
    for (QueuePair* member : members_) member->fail_later(Failure::fatal(EOVERFLOW));
  }
  if (channel_ != nullptr) channel_->post(this);  // a sleeper polls, and sees
}

int CompletionQueue::resize(int entries) {
  const uint32_t capacity = std::bit_ceil(static_cast<uint32_t>(entries));
  std::unique_ptr<Entry[]> ring(new (std::nothrow) Entry[capacity]);
  std::unique_ptr<uint64_t[]> times(stamped_ ? new (std::nothrow) uint64_t[capacity] : nullptr);
  if (ring == nullptr || (stamped_ && times == nullptr)) return ENOMEM;
  const std::lock_guard lock(ring_lock_);
  const uint32_t head = head_.load(std::memory_order_relaxed);
  const uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (overrun_.load(std::memory_order_relaxed) || tail - head > static_cast<uint32_t>(entries)) return EINVAL;
  for (uint32_t i = head; i != tail; i++) {
    ring[i & (capacity - 1)] = ring_[i & mask_];
    if (stamped_) times[i & (capacity - 1)] = times_[i & mask_];
  }
  ring_.swap(ring);
  times_.swap(times);
  mask_ = capacity - 1;
  cqe = static_cast<int>(capacity);
  return 0;
}

void CompletionQueue::try_waiting() {
  for (QueuePair* member : members_) {
    if (member->send_cq == verbs()) member->progress_from_poll();
  }
}

}  // namespace rdmakit::shm
