#include "shm/queue-pair/shared_receive_queue.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "shm/device.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {

std::unique_ptr<SharedReceiveQueue> SharedReceiveQueue::create(ibv_pd* pd, ibv_srq_init_attr* attributes) {
  ibv_srq_attr& wanted = attributes->attr;
  if (wanted.max_wr < 1 || wanted.max_wr > kMaxWorkRequests || wanted.max_sge > kMaxSge) {
    errno = EINVAL;
    return nullptr;
  }
  wanted.max_wr = std::bit_ceil(wanted.max_wr);
  wanted.max_sge = std::max(wanted.max_sge, 1u);
  wanted.srq_limit = 0;
  const SharedShape shape{wanted.max_wr, wanted.max_sge};
  std::unique_ptr<SharedReceiveQueue> made(new SharedReceiveQueue(pd, attributes->srq_context, shape));
  made->board_mapping_ =
      SharedMapping::create("rdmakit-receives", shape.board_size(), Sharing::read_only, made->board_fd_);
  if (made->board_mapping_ == nullptr) return nullptr;
  made->claims_mapping_ =
      SharedMapping::create("rdmakit-claims", shape.claims_size(), Sharing::writable, made->claims_fd_);
  if (made->claims_mapping_ == nullptr) return nullptr;
  uint8_t* board = made->board_mapping_->data();
  uint8_t* claims = made->claims_mapping_->data();
  made->board_ = reinterpret_cast<BoardHeader*>(board);
  made->tickets_ = reinterpret_cast<std::atomic<uint64_t>*>(board + shape.tickets_at());
  made->claims_ = reinterpret_cast<ClaimsHeader*>(claims);
  made->claimed_ = reinterpret_cast<std::atomic<uint64_t>*>(claims + shape.claims_at());
  for (uint32_t i = 0; i < shape.entries; i++) {
    made->claimed_[i].store(with_ticket(0, kNotPosted));
    made->tickets_[i].store(with_ticket(i - shape.entries, i));
  }
  return made;
}

SharedReceiveQueue::SharedReceiveQueue(ibv_pd* pd, void* context, SharedShape shape)
    : ibv_srq{}, shape_(shape) {
  this->context = pd->context;
  srq_context = context;
  this->pd = pd;
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
  works_ = std::make_unique_for_overwrite<ReceiveWork[]>(shape.entries);
  sges_ = std::make_unique_for_overwrite<ibv_sge[]>(size_t{shape.entries} * shape.sges);
  outstanding_ = std::make_unique<std::atomic<bool>[]>(shape.entries);
  free_ = std::make_unique_for_overwrite<uint32_t[]>(shape.entries);
  while (free_count_ < shape.entries) {
    free_[free_count_] = shape.entries - 1 - free_count_;
    free_count_++;
  }
  static_cast<ProtectionDomain*>(pd)->users++;
}

SharedReceiveQueue::~SharedReceiveQueue() {
  ProgressThread::instance().cancel(limit_errand_);
  pthread_cond_destroy(&cond);
  pthread_mutex_destroy(&mutex);
  static_cast<ProtectionDomain*>(pd)->users--;
}

// Hot path: no allocation; a system call only when a peer has been waiting for a receive.
int SharedReceiveQueue::post(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int error = 0;
  {
    const std::lock_guard lock(lock_);
    for (; request != nullptr; request = request->next) {
      if (request->num_sge < 0 || static_cast<uint32_t>(request->num_sge) > shape_.sges) {
        error = EINVAL;
      } else if (free_count_ == 0) {
        error = ENOMEM;
      }
      if (error != 0) [[unlikely]] {
        *bad = request;
        break;
      }
      const uint32_t index = free_[--free_count_];
      ReceiveWork& work = works_[index];
      ibv_sge* own = &sges_[size_t{index} * shape_.sges];
      auto& entry = *reinterpret_cast<ReceiveEntry*>(board_mapping_->data() + shape_.entries_at() +
                                                     index * shape_.entry_stride());
      work.post(*request, own, entry);
      outstanding_[index].store(true, std::memory_order_release);
      publish(index);
    }
    board_->posted.exchange(next_ticket_, std::memory_order_seq_cst);
  }
  // Post, then check who waits; a peer announces that it waits, then checks for posted receives.
  if (claims_->starved.load(std::memory_order_seq_cst) != 0) [[unlikely]]
    wake_starved();
  return error;
}

// The entry gets the next ticket. Under lock_; `posted` follows.
void SharedReceiveQueue::publish(uint32_t entry) {
  const uint32_t mask = shape_.entries - 1;
  // There are as many places for tickets as entries, and this entry has none, so some place is free. One
  // that was passed over, because a peer wrote nonsense into the hint, goes to the end.
  for (uint32_t i = 0; i <= mask; i++) {
    const uint64_t before = tickets_[next_ticket_ & mask].load(std::memory_order_relaxed);
    const uint32_t passed = low_of(before);
    uint64_t claim = with_ticket(ticket_of(before), kPosted);
    if (!outstanding_[passed].load(std::memory_order_relaxed) ||
        !claimed_[passed].compare_exchange_strong(claim, with_ticket(next_ticket_, kPosted))) {
      break;
    }
    tickets_[next_ticket_ & mask].store(with_ticket(next_ticket_, passed), std::memory_order_release);
    next_ticket_++;
  }
  claimed_[entry].store(with_ticket(next_ticket_, kPosted), std::memory_order_release);
  tickets_[next_ticket_ & mask].store(with_ticket(next_ticket_, entry), std::memory_order_release);
  next_ticket_++;
}

const ReceiveWork* SharedReceiveQueue::claim(uint32_t entry) {
  if (entry >= shape_.entries || !outstanding_[entry].exchange(false, std::memory_order_acquire)) {
    return nullptr;
  }
  return &works_[entry];
}

void SharedReceiveQueue::release(uint32_t entry) {
  const std::lock_guard lock(lock_);
  claimed_[entry].store(with_ticket(0, kNotPosted), std::memory_order_release);
  free_[free_count_++] = entry;
}
// End of hot path.

void SharedReceiveQueue::unclaim(uint32_t entry, uint32_t queue_pair) {
  claimed_[entry].store(with_ticket(0, queue_pair));
  outstanding_[entry].store(true, std::memory_order_release);
}

// All of them: one that was woken and does not come for its receive must not keep it from the others.
void SharedReceiveQueue::wake_starved() {
  if (claims_->starved.exchange(0, std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(members_mutex_);
  first_woken_++;  // not always the same one first
  for (size_t i = 0; i < members_.size(); i++) {
    members_[(first_woken_ + i) % members_.size()]->kick_starved();
  }
}

bool SharedReceiveQueue::take_back(uint32_t queue_pair, uint32_t& from, uint64_t& wr_id) {
  while (from < shape_.entries) {
    const uint32_t entry = from++;
    if (low_of(claimed_[entry].load()) != queue_pair) continue;
    const ReceiveWork* work = claim(entry);
    if (work == nullptr) continue;
    wr_id = work->wr_id;
    release(entry);
    return true;
  }
  return false;
}

void SharedReceiveQueue::join(QueuePair* queue_pair) {
  const std::lock_guard lock(members_mutex_);
  members_.push_back(queue_pair);
}

// A hostile peer's changes to the claims end with it.
void SharedReceiveQueue::leave(QueuePair* queue_pair) {
  const std::lock_guard members_lock(members_mutex_);
  std::erase(members_, queue_pair);
  {
    const std::lock_guard lock(lock_);
    for (uint32_t i = 0; i < shape_.entries; i++) {
      const uint64_t claim = claimed_[i].load();
      const bool known = low_of(claim) == kPosted ||
                         std::any_of(members_.begin(), members_.end(),
                                     [&](const QueuePair* each) { return each->qp_num == low_of(claim); });
      // Ours before it is listed: one whose message is being claimed goes back to the free ones by itself.
      if (!known && outstanding_[i].exchange(false)) {
        publish(i);
        outstanding_[i].store(true, std::memory_order_release);
      }
    }
    board_->posted.exchange(next_ticket_, std::memory_order_seq_cst);
    claims_->next.store(next_ticket_ - shape_.entries, std::memory_order_relaxed);
  }
  for (QueuePair* each : members_) each->kick_starved();
}

bool SharedReceiveQueue::in_use() {
  const std::lock_guard lock(members_mutex_);
  return !members_.empty();
}

int SharedReceiveQueue::modify(const ibv_srq_attr& attributes, int mask) {
  if (mask & IBV_SRQ_MAX_WR) return EOPNOTSUPP;
  if (mask != IBV_SRQ_LIMIT) return mask == 0 ? 0 : EINVAL;
  if (attributes.srq_limit > shape_.entries) return EINVAL;
  claims_->limit_told.store(0);
  board_->limit.store(attributes.srq_limit, std::memory_order_seq_cst);
  look_at_limit();
  return 0;
}

void SharedReceiveQueue::query(ibv_srq_attr& attributes) const {
  attributes = {shape_.entries, shape_.sges, board_->limit.load()};
}

void SharedReceiveQueue::look_at_limit() {
  if (board_->limit.load() != 0) ProgressThread::instance().call(limit_errand_);
}

void SharedReceiveQueue::tell_limit() {
  uint32_t limit = board_->limit.load();
  claims_->limit_told.store(0);  // before counting: who takes one from here on tells again
  uint32_t left = 0;
  for (uint32_t i = 0; i < shape_.entries; i++) left += low_of(claimed_[i].load()) == kPosted;
  if (limit == 0 || left >= limit || !board_->limit.compare_exchange_strong(limit, 0)) return;
  async_events().emit({IBV_EVENT_SRQ_LIMIT_REACHED, reinterpret_cast<uint64_t>(static_cast<ibv_srq*>(this))});
}

}  // namespace rdmakit::shm
