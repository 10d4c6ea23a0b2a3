// The receive queue: receives that are posted, and messages that have arrived in the slots.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "shm/completion/completion_queue.h"
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {

// Hot path: no allocation; a system call only when the peer has been waiting for a receive.
int QueuePair::post_receive(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int error = 0;
  {
    const std::lock_guard lock(receive_lock_);
    if (state_.load(std::memory_order_relaxed) == State::reset) [[unlikely]] {
      *bad = request;
      return EINVAL;
    }
    uint32_t tail = receive_tail_.load(std::memory_order_relaxed);
    for (; request != nullptr; request = request->next) {
      if (request->num_sge < 0 || static_cast<uint32_t>(request->num_sge) > cap_.max_recv_sge) {
        error = EINVAL;
      } else if (tail - receive_polled_.load(std::memory_order_acquire) > receive_mask_) {
        error = ENOMEM;
      }
      if (error != 0) [[unlikely]] {
        *bad = request;
        break;
      }
      const uint32_t index = tail & receive_mask_;
      ReceiveWork& work = receive_works_[index];
      ibv_sge* own = &receive_sges_[size_t{index} * cap_.max_recv_sge];
      auto& entry = *reinterpret_cast<ReceiveEntry*>(area_->data() + shape_.entries_at() +
                                                     index * shape_.entry_stride());
      work.post(*request, own, entry);
      if (work.length < floor_) [[unlikely]] {
        floor_ = work.length;
        header_->floor.store(static_cast<uint32_t>(floor_), std::memory_order_relaxed);
      }
      tail++;
    }
    receive_tail_.store(tail, std::memory_order_seq_cst);
    header_->posted.exchange(tail, std::memory_order_seq_cst);
  }
  // Post, then check who waits; the peer announces that it waits, then checks for posted receives.
  if (header_->starved.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
    const std::shared_ptr<Link> at = link();
    if (at != nullptr && header_->starved.exchange(0, std::memory_order_relaxed) != 0) at->kick();
  }
  // fail() sets the state and then flushes, this publishes and then looks, all of it sequentially consistent:
  // one sees the other.
  if (state_.load(std::memory_order_seq_cst) == State::error) [[unlikely]] {
    const std::lock_guard lock(receive_queue()->members_lock());
    if (broken_) flush_receives();
  }
  return error;
}

int QueuePair::consume(int capacity, ibv_wc* completions) {
  int count = 0;
  while (count < capacity && take_next(completions[count])) count++;
  if (count > 0) receive_polled_.store(receive_head_, std::memory_order_release);
  return count;
}

// False: there is none. Its receive stays in use until somebody has polled the completion.
bool QueuePair::take_next(ibv_wc& completion) {
  if (broken_) return false;
  const uint32_t index = receive_head_ & receive_mask_;
  const Slot& slot = slots_[index];
  if (slot.sequence.load(std::memory_order_seq_cst) != receive_head_ + 1) return false;
  // Not good: what the peer wrote makes no sense.
  const bool good =
      receive_head_ != receive_tail_.load(std::memory_order_acquire) &&
      take(slot, receive_works_[index], &receive_sges_[size_t{index} * cap_.max_recv_sge], completion);
  if (good) receive_head_++;
  if (!good || completion.status != IBV_WC_SUCCESS) [[unlikely]] {
    broken_ = true;
    fail_later(good ? Failure::receive() : Failure::violation());
  }
  return good;
}

bool QueuePair::take(const Slot& slot, const ReceiveWork& work, const ibv_sge* sge, ibv_wc& completion) {
  const SlotKind kind = read_once(slot.kind);
  const uint8_t flags = read_once(slot.flags);
  const uint32_t length = read_once(slot.length);
  if (shape_.stamped) [[unlikely]]
    arrival_time_ = std::min(read_once(stamps_[receive_head_ & receive_mask_]), now_ns());
  completion = {};
  completion.wr_id = work.wr_id;
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = IBV_WC_RECV;
  completion.byte_len = length;
  completion.qp_num = qp_num;
  if (flags & (kSlotImmediate | kSlotInvalidate)) {
    completion.wc_flags = flags & kSlotImmediate ? IBV_WC_WITH_IMM : IBV_WC_WITH_INV;
    completion.imm_data = read_once(slot.immediate);
    if ((flags & kSlotInvalidate) && kind != SlotKind::wrong_key) {
      if (!domain()->invalidate(completion.invalidated_rkey, qp_num)) {
        completion.status = IBV_WC_LOC_ACCESS_ERR;
        return true;
      }
      // A peer has ended a window and still uses it: the progress thread waits for it, not this thread.
      if (hazard_->names(completion.invalidated_rkey)) {
        fail_later(Failure::misuse());
        return false;
      }
    }
  }
  switch (kind) {
    case SlotKind::payload: {
      if (length > kSlotPayload) return false;
      if (length > work.length) {
        completion.status = IBV_WC_LOC_LEN_ERR;
        return true;
      }
      for (uint32_t done = 0; done < length; sge++) {
        const uint32_t piece = std::min(sge->length, length - done);
        if (piece == 0) continue;
        if (!domain()->allows(sge->lkey, sge->addr, piece, IBV_ACCESS_LOCAL_WRITE)) [[unlikely]] {
          completion.status = IBV_WC_LOC_PROT_ERR;
          return true;
        }
        std::memcpy(reinterpret_cast<void*>(sge->addr), slot.payload + done, piece);
        done += piece;
      }
      return true;
    }
    case SlotKind::placed:
      return length <= work.length;
    case SlotKind::write:
      completion.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      return length <= kMaxMessage;
    case SlotKind::length_error:
      completion.status = IBV_WC_LOC_LEN_ERR;
      return true;
    case SlotKind::wrong_key:
      completion.status = IBV_WC_LOC_ACCESS_ERR;
      return true;
    case SlotKind::protection_error:
      completion.status = IBV_WC_LOC_PROT_ERR;
      return true;
  }
  return false;
}
// End of hot path.

bool QueuePair::has_arrival(bool solicited_only) const {
  if (broken_) return false;
  for (uint32_t i = 0; i < shape_.entries; i++) {
    const Slot& slot = slots_[(receive_head_ + i) & receive_mask_];
    if (slot.sequence.load(std::memory_order_seq_cst) != receive_head_ + i + 1) return false;
    if (!solicited_only || (read_once(slot.flags) & kSlotSolicited)) return true;
  }
  return false;
}

// Armed, then looked at the slots; the peer publishes, then looks whether we are armed.
void QueuePair::arm(uint32_t armed) { header_->armed.exchange(armed, std::memory_order_seq_cst); }

bool QueuePair::was_disarmed() const { return header_->armed.load(std::memory_order_seq_cst) == kArmedNot; }

void QueuePair::flush_receives() {
  const uint32_t tail = receive_tail_.load(std::memory_order_seq_cst);
  for (; receive_head_ != tail; receive_head_++) {
    ibv_wc completion{};
    completion.wr_id = receive_works_[receive_head_ & receive_mask_].wr_id;
    completion.status = IBV_WC_WR_FLUSH_ERR;
    completion.opcode = IBV_WC_RECV;
    completion.qp_num = qp_num;
    receive_queue()->push(completion, true, &receive_polled_, receive_head_ + 1);
  }
}

}  // namespace rdmakit::shm
