#include "iwarp/queue-pair/shared_receive_queue.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>

#include "base/null_with_errno.h"
#include "iwarp/memory/protection_domain.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

std::unique_ptr<SharedReceiveQueue> SharedReceiveQueue::create(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  ibv_srq_attr& attr = attributes->attr;
  if (attr.max_wr > kMaxWorkRequests || attr.max_sge > kMaxSge) return null_with_errno(EINVAL);
  try {
    std::unique_ptr<SharedReceiveQueue> queue(new SharedReceiveQueue(pd, *attributes));
    attr.max_wr = queue->capacity_;
    attr.max_sge = queue->max_sge_;
    return queue;
  } catch (const std::bad_alloc&) {
    return null_with_errno(ENOMEM);
  }
}

SharedReceiveQueue::SharedReceiveQueue(ibv_pd* pd, const ibv_srq_init_attr& attributes)
    : ibv_srq{},
      capacity_(std::bit_ceil(std::max(attributes.attr.max_wr, 1u))),
      max_sge_(std::max(attributes.attr.max_sge, 1u)) {
  context = pd->context;
  srq_context = attributes.srq_context;
  this->pd = pd;
  works_ = std::make_unique_for_overwrite<ReceiveWork[]>(capacity_);
  sges_ = std::make_unique_for_overwrite<ibv_sge[]>(size_t{capacity_} * max_sge_);
  posted_ = std::make_unique_for_overwrite<uint32_t[]>(capacity_);
  free_ = std::make_unique_for_overwrite<uint32_t[]>(capacity_);
  while (free_count_ < capacity_) {
    free_[free_count_] = capacity_ - 1 - free_count_;
    free_count_++;
  }
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
  static_cast<ProtectionDomain*>(pd)->users++;
}

SharedReceiveQueue::~SharedReceiveQueue() {
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
  static_cast<ProtectionDomain*>(pd)->users--;
}

// Hot path: no allocation, one lock, no system call except to report the limit.
int SharedReceiveQueue::post(ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(mutex_);
  for (; request != nullptr; request = request->next) {
    const bool fits = request->num_sge >= 0 && static_cast<uint32_t>(request->num_sge) <= max_sge_;
    if (!fits || free_count_ == 0) {
      *bad = request;
      return fits ? ENOMEM : EINVAL;
    }
    const uint32_t index = free_[--free_count_];
    works_[index].fill(*request, &sges_[size_t{index} * max_sge_]);
    posted_[tail_++ & (capacity_ - 1)] = index;
  }
  return 0;
}

const ReceiveWork* SharedReceiveQueue::take() {
  const std::lock_guard lock(mutex_);
  if (head_ == tail_) return nullptr;
  const ReceiveWork* work = &works_[posted_[head_++ & (capacity_ - 1)]];
  tell_limit();
  return work;
}

void SharedReceiveQueue::release(const ReceiveWork* work) {
  const std::lock_guard lock(mutex_);
  free_[free_count_++] = static_cast<uint32_t>(index_of(work));
}

void SharedReceiveQueue::tell_limit() {
  if (tail_ - head_ >= limit_) return;
  limit_ = 0;  // once per arming
  limit_event_.raise(IBV_EVENT_SRQ_LIMIT_REACHED);
}
// End of hot path.

int SharedReceiveQueue::modify(const ibv_srq_attr& attributes, int mask) {
  if (mask & ~IBV_SRQ_LIMIT) return EOPNOTSUPP;  // its size is for life
  if (mask == 0) return 0;
  const std::lock_guard lock(mutex_);
  if (attributes.srq_limit > capacity_) return EINVAL;
  limit_ = attributes.srq_limit;
  tell_limit();
  return 0;
}

void SharedReceiveQueue::query(ibv_srq_attr& attributes) {
  const std::lock_guard lock(mutex_);
  attributes = {capacity_, max_sge_, limit_};
}

}  // namespace rdmakit::iwarp
