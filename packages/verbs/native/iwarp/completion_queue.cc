#include "iwarp/completion_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "iwarp/completion_channel.h"
#include "iwarp/queue_pair.h"

namespace rdmakit::iwarp {
namespace {

// Up to this many sockets are tried one by one: a recv that finds nothing costs about as much as an
// epoll_wait that finds nothing, and a recv that finds something is the one that was needed anyway.
// Beyond, one epoll_wait says which sockets are worth a recv.
constexpr size_t kMembersTriedDirectly = 4;

// Of who feeds a queue that has lost completions.
Failure overrun_failure() {
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  failure.status = EOVERFLOW;
  return failure;
}

}  // namespace

CompletionQueue::CompletionQueue(ibv_context* context, int entries, void* cq_context,
                                 CompletionChannel* channel, Progress progress)
    : ibv_cq_ex{}, progress_(progress), channel_(channel) {
  this->context = context;
  this->channel = channel;
  this->cq_context = cq_context;
  const uint32_t capacity = std::bit_ceil(static_cast<uint32_t>(std::max(entries, 1)));
  cqe = static_cast<int>(capacity);
  mask_ = capacity - 1;
  ring_ = std::make_unique_for_overwrite<Entry[]>(capacity);
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
  if (channel_ != nullptr) channel_->attach();
}

CompletionQueue::~CompletionQueue() {
  if (channel_ != nullptr) {
    channel_->detach(this);
    wait_for_acknowledgements();
  }
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
}

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

void CompletionQueue::attach(QueuePair* queue_pair, int socket) {
  {
    const std::lock_guard lock(members_mutex_);
    members_.push_back({queue_pair, socket, false});
    if (progress_ == Progress::manual) watch_last();
  }
  // Whoever failed the members may have been through before.
  if (overrun_.load()) queue_pair->fail(overrun_failure());
}

void CompletionQueue::watch_last() {
  if (channel_ != nullptr) {
    watch(members_.back(), channel_->poll_set());
  } else if (members_.size() > kMembersTriedDirectly) {
    if (own_set_ == nullptr) {
      auto set = std::make_unique<PollSet>();
      if (!set->ok()) return;  // out of descriptors: go on one by one
      own_set_ = std::move(set);
    }
    for (Member& member : members_) {
      if (!member.watched) watch(member, *own_set_);
    }
  }
}

void CompletionQueue::watch(Member& member, PollSet& set) {
  const uint64_t token = set.add(member.queue_pair, member.socket, EPOLLIN);
  // 0 also when both queues of the queue pair share the set and it is watched already.
  if (token != 0) member.queue_pair->watch_with(&set, token);
  member.watched = true;
}

void CompletionQueue::detach(QueuePair* queue_pair) {
  const std::lock_guard lock(members_mutex_);
  std::erase_if(members_, [&](const Member& member) { return member.queue_pair == queue_pair; });
}

// A thread of the provider's: it takes the queue pairs' locks.
void CompletionQueue::fail_members() {
  const Failure failure = overrun_failure();
  const std::lock_guard lock(members_mutex_);
  for (const Member& member : members_) member.queue_pair->fail(failure);
}

int CompletionQueue::resize(int entries) {
  if (entries < 1 || entries > kMaxCompletions) return EINVAL;
  const uint32_t capacity = std::bit_ceil(static_cast<uint32_t>(entries));
  try {
    auto ring = std::make_unique_for_overwrite<Entry[]>(capacity);
    auto stamps = stamps_ == nullptr ? nullptr : std::make_unique_for_overwrite<Stamp[]>(capacity);
    const std::lock_guard lock(ring_mutex_);
    const uint32_t head = head_.load(std::memory_order_relaxed);
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head > static_cast<uint32_t>(entries)) return EINVAL;
    for (uint32_t i = head; i != tail; i++) {
      ring[i & (capacity - 1)] = ring_[i & mask_];
      if (stamps != nullptr) stamps[i & (capacity - 1)] = stamps_[i & mask_];
    }
    ring_ = std::move(ring);
    stamps_ = std::move(stamps);
    mask_ = capacity - 1;
    cqe = static_cast<int>(capacity);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

void CompletionQueue::forget(const std::atomic<uint32_t>* polled) {
  const std::lock_guard lock(ring_mutex_);
  const uint32_t end = tail_.load(std::memory_order_relaxed);
  uint32_t kept = head_.load(std::memory_order_relaxed);
  for (uint32_t i = kept; i != end; i++) {
    if (ring_[i & mask_].polled == polled) continue;
    ring_[kept & mask_] = ring_[i & mask_];
    if (stamps_ != nullptr) stamps_[kept & mask_] = stamps_[i & mask_];
    kept++;
  }
  tail_.store(kept, std::memory_order_release);
}

void CompletionQueue::request_notification(bool solicited_only) {
  const std::lock_guard lock(ring_mutex_);
  if (armed_ == Armed::no && channel_ != nullptr && progress_ == Progress::manual)
    newly_armed_.store(true, std::memory_order_relaxed);
  // Asking for less than was asked before changes nothing.
  if (!solicited_only) {
    armed_ = Armed::any;
  } else if (armed_ == Armed::no) {
    armed_ = Armed::solicited;
  }
}

// Hot path.
void CompletionQueue::push(const ibv_wc& completion, bool solicited, std::atomic<uint32_t>* polled,
                           uint32_t position) {
  bool notify = false;
  {
    const std::lock_guard lock(ring_mutex_);
    const uint32_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_relaxed) > mask_ || overrun_.load(std::memory_order_relaxed))
        [[unlikely]] {
      if (!overrun_.exchange(true, std::memory_order_relaxed)) error_event_.raise(IBV_EVENT_CQ_ERR);
    } else {
      ring_[tail & mask_] = {completion, polled, position};
      if (stamps_ != nullptr) [[unlikely]]
        stamp(stamps_[tail & mask_]);
      tail_.store(tail + 1, std::memory_order_release);
    }
    notify = armed_ == Armed::any || (armed_ == Armed::solicited && solicited);
    if (notify) armed_ = Armed::no;
  }
  if (notify && channel_ != nullptr) channel_->post(this);
}

int CompletionQueue::pop(int capacity, ibv_wc* completions, Stamp* stamps) {
  if (head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire)) {
    return overrun_.load(std::memory_order_relaxed) ? -1 : 0;
  }
  const std::lock_guard lock(ring_mutex_);
  const uint32_t head = head_.load(std::memory_order_relaxed);
  const uint32_t ready = tail_.load(std::memory_order_relaxed) - head;
  const uint32_t count = std::min(ready, static_cast<uint32_t>(capacity));
  for (uint32_t i = 0; i < count; i++) {
    const Entry& entry = ring_[(head + i) & mask_];
    completions[i] = entry.completion;
    if (stamps != nullptr) [[unlikely]]
      stamps[i] = stamps_ != nullptr ? stamps_[(head + i) & mask_] : Stamp{};
    entry.polled->store(entry.position, std::memory_order_release);
  }
  head_.store(head + count, std::memory_order_release);
  return static_cast<int>(count);
}

int CompletionQueue::poll(int capacity, ibv_wc* completions, Stamp* stamps) {
  if (capacity <= 0) return 0;
  const int count = pop(capacity, completions, stamps);
  if (count != 0) return count;
  // What a poller looks for after it has armed the queue is what completed before. What is in the sockets
  // keeps the channel's descriptor readable, so one look less at them costs nothing, and a sleeper saves a
  // system call. The next poll looks again.
  if (newly_armed_.load(std::memory_order_relaxed)) {
    newly_armed_.store(false, std::memory_order_relaxed);
    return 0;
  }
  progress();
  return pop(capacity, completions, stamps);
}

void CompletionQueue::progress() {
  const std::unique_lock lock(members_mutex_, std::try_to_lock);
  if (!lock) return;  // another thread is at it
  PollSet* set = channel_ != nullptr ? &channel_->poll_set() : own_set_.get();
  if (members_.size() <= kMembersTriedDirectly || (progress_ == Progress::manual && set == nullptr)) {
    for (const Member& member : members_) {
      member.queue_pair->progress(EPOLLIN, QueuePair::Contention::give_up);
    }
  } else if (progress_ == Progress::manual) {
    set->progress();
  }
  // With automatic progress and many queue pairs the progress thread knows better where data is.
}
// End of hot path.

}  // namespace rdmakit::iwarp
