#include "iwarp/completion/completion_queue.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "iwarp/completion/completion_channel.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {
namespace {

// Up to this many sockets are tried one by one: a recv that finds nothing costs about as much as an
// epoll_wait that finds nothing, and a recv that finds something is the one that was needed anyway.
// Beyond, one epoll_wait says which sockets are worth a recv.
constexpr size_t kMembersTriedDirectly = 4;

// The failure of a queue pair whose queue has lost completions.
Failure overrun_failure() {
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  failure.status = EOVERFLOW;
  return failure;
}

}  // namespace

CompletionQueue::CompletionQueue(ibv_context* context, int entries, void* cq_context,
                                 CompletionChannel* channel, Progress progress, uint64_t stamps)
    : CompletionQueueBase(context, cq_context, channel),
      progress_(progress),
      channel_(channel),
      ring_(entries, stamps != 0),
      monotonic_wanted_(stamps & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP),
      wallclock_wanted_(stamps & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
  cqe = ring_.capacity();
  if (channel_ != nullptr) channel_->attach();
}

CompletionQueue::~CompletionQueue() {
  if (channel_ == nullptr) return;
  channel_->detach(this);
  wait_for_acknowledgements();
}

int CompletionQueue::attach(QueuePair* queue_pair, int socket) {
  {
    const std::lock_guard lock(members_mutex_);
    members_.push_back({queue_pair, socket, false});
    if (const int error = progress_ == Progress::manual ? watch_last() : 0; error != 0) {
      members_.pop_back();  // a set that watches only some would leave out the others
      return error;
    }
  }
  // The thread that failed the members may have passed this one before.
  if (overrun_.load()) queue_pair->fail(overrun_failure());
  return 0;
}

int CompletionQueue::watch_last() {
  if (channel_ != nullptr) return watch(members_.back(), channel_->poll_set());
  if (members_.size() > kMembersTriedDirectly) {
    if (own_set_ == nullptr) {
      auto set = std::make_unique<PollSet>();
      if (!set->ok()) return 0;  // out of descriptors: continue one by one
      own_set_ = std::move(set);
    }
    for (Member& member : members_) {
      const int error = member.watched ? 0 : watch(member, *own_set_);
      if (error != 0) return error;
    }
  }
  return 0;
}

int CompletionQueue::watch(Member& member, PollSet& set) {
  const uint64_t token = set.add(member.queue_pair, member.socket, EPOLLIN);
  // When both queues of the queue pair share the set it is watched already.
  if (token == 0 && errno != EEXIST) return errno;
  if (token != 0) member.queue_pair->watch_with(&set, token);
  member.watched = true;
  return 0;
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
  try {
    software::CompletionRing<Stamp> ring(entries, ring_.stamped());
    const std::lock_guard lock(ring_mutex_);
    if (!ring_.move_to(ring, static_cast<uint32_t>(entries))) return EINVAL;
    cqe = ring_.capacity();
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

void CompletionQueue::forget(const std::atomic<uint32_t>* polled) {
  const std::lock_guard lock(ring_mutex_);
  ring_.forget(polled);
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
    if (ring_.full() || overrun_.load(std::memory_order_relaxed)) [[unlikely]] {
      if (!overrun_.exchange(true, std::memory_order_relaxed)) error_event_.raise(IBV_EVENT_CQ_ERR);
    } else {
      if (Stamp* next = ring_.next_stamp(); next != nullptr) [[unlikely]]
        stamp(*next);
      ring_.add(completion, polled, position);
    }
    notify = armed_ == Armed::any || (armed_ == Armed::solicited && solicited);
    if (notify) armed_ = Armed::no;
  }
  if (notify && channel_ != nullptr) channel_->post(this);
}

int CompletionQueue::pop(int capacity, ibv_wc* completions, Stamp* stamps) {
  if (ring_.empty()) return overrun_.load(std::memory_order_relaxed) ? -1 : 0;
  const std::lock_guard lock(ring_mutex_);
  return ring_.take(capacity, completions, stamps);
}

int CompletionQueue::poll(int capacity, ibv_wc* completions, Stamp* stamps) {
  if (capacity <= 0) return 0;
  const int count = pop(capacity, completions, stamps);
  if (count != 0) return count;
  // After arming the queue, a poller looks for completions from before. Data in the sockets keep the
  // channel's descriptor readable, so skipping the sockets once loses nothing, and saves a system call before
  // a sleep. The next poll checks them.
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
