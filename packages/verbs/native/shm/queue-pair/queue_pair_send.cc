// The send queue. A request is done while it is posted; only one that has to wait, for a receive of the
// peer or for the announcement of a segment, is copied into the queue, and all that come after it.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shm/completion/completion_queue.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/queue-pair/queue_pair_request.h"
#include "shm/setup/connection.h"

namespace rdmakit::shm {
// Hot path: no allocation, no system call unless the peer sleeps, one uncontended lock.
int QueuePair::post_send(ibv_send_wr* request, ibv_send_wr** bad, const LentBytes* lent) {
  int error = 0;
  bool failed = false;
  {
    const std::lock_guard lock(send_lock_);
    const State before = state_.load(std::memory_order_relaxed);
    if (before != State::connected && before != State::error) [[unlikely]] {
      *bad = request;
      return EINVAL;
    }
    lent_ = lent;
    for (; request != nullptr; request = request->next) {
      uint64_t length = 0;
      error = check(*request, length);
      if (error != 0) [[unlikely]] {
        *bad = request;
        break;
      }
      const uint32_t bytes = static_cast<uint32_t>(length);
      const bool signaled = signal_all_ || (request->send_flags & IBV_SEND_SIGNALED);
      if (send_head_ != send_tail_) [[unlikely]] {  // some wait, or wait to be flushed
        enqueue(*request, bytes);
        continue;
      }
      if (state_.load(std::memory_order_relaxed) == State::error) [[unlikely]] {
        send_head_ = ++send_tail_;
        report_send(request->wr_id, request->opcode, bytes, IBV_WC_WR_FLUSH_ERR, 0);
        continue;
      }
      const Outcome outcome = execute(Request(*request, bytes));
      if (outcome.waits) [[unlikely]] {
        enqueue(*request, bytes);
        set_waiting(true);
        continue;
      }
      send_head_ = ++send_tail_;
      failed |= !settle(outcome, request->wr_id, request->opcode, bytes, signaled);
    }
    let_go();
    if (lent != nullptr) {
      lent_ = nullptr;
      if (send_head_ != send_tail_) [[unlikely]]
        std::memcpy(reinterpret_cast<void*>(lent->address), lent->data, lent->length);
    }
  }
  if (failed) [[unlikely]]
    fail(end_);
  return error;
}

int QueuePair::check(const ibv_send_wr& request, uint64_t& length) const {
  if (int error = check_transfer(request, length); error != 0) [[unlikely]] {
    if (error == EOPNOTSUPP) error = check_local(request);
    if (error != 0) return error;
    length = 0;
  }
  return has_room() ? 0 : ENOMEM;
}

int QueuePair::check_local(const ibv_send_wr& request) {
  if (request.opcode == IBV_WR_LOCAL_INV) return 0;
  if (request.opcode != IBV_WR_BIND_MW) return EOPNOTSUPP;
  const ibv_mw* mw = request.bind_mw.mw;
  return mw == nullptr || mw->type != IBV_MW_TYPE_2 || request.bind_mw.bind_info.mr == nullptr ? EINVAL : 0;
}

// An entry is in use until its completion has been polled, an unsignaled one until a later completion has
// been: as on a card, which gives no other report of what is done (ibv_post_send(3)).
bool QueuePair::has_room() const {
  return send_tail_ - send_polled_.load(std::memory_order_acquire) <= send_mask_;
}

// Completes what execute() did. False: the queue pair is in error now, and fail() has to follow.
bool QueuePair::settle(const Outcome& outcome, uint64_t wr_id, ibv_wr_opcode opcode, uint32_t length,
                       bool signaled) {
  if (outcome.status == IBV_WC_SUCCESS) [[likely]] {
    if (signaled) report_send(wr_id, opcode, length, IBV_WC_SUCCESS, 0);
    return true;
  }
  report_send(wr_id, opcode, length, outcome.status, outcome.vendor_error);
  if (outcome.lost) {
    end_ = Failure::lost(ECONNRESET);
    end_.oldest_send = IBV_WC_WR_FLUSH_ERR;  // this was the request that reports it
  } else {
    end_ = Failure::own(outcome.blame);
  }
  enter(State::error, IBV_QPS_ERR);
  return false;
}

void QueuePair::report_send(uint64_t wr_id, ibv_wr_opcode opcode, uint32_t length, ibv_wc_status status,
                            uint32_t vendor_error) {
  ibv_wc completion{};
  completion.wr_id = wr_id;
  completion.status = status;
  completion.vendor_err = vendor_error;
  completion.opcode = completion_opcode(opcode);
  completion.byte_len = opcode == IBV_WR_RDMA_READ || is_atomic(opcode) ? length : 0;
  completion.qp_num = qp_num;
  send_queue()->push(completion, status != IBV_WC_SUCCESS, &send_polled_, send_head_);
}
// End of hot path.

void QueuePair::enqueue(const ibv_send_wr& request, uint32_t length) {
  SendWork& work = send_works_[send_tail_ & send_mask_];
  const Request what(request, length);
  work = {request.wr_id, request.send_flags, what};
  ibv_sge* to = &send_sges_[size_t{send_tail_ & send_mask_} * cap_.max_send_sge];
  work.request.sges = to;
  if (what.inlined) {
    uint8_t* bytes = inline_data(send_tail_);
    work.request.sge_count = 0;
    if (length > 0) to[work.request.sge_count++] = {reinterpret_cast<uint64_t>(bytes), length, 0};
    for (uint32_t i = 0; i < what.sge_count; i++) {
      const ibv_sge& sge = request.sg_list[i];
      if (sge.length > 0) std::memcpy(bytes, reinterpret_cast<const void*>(sge.addr), sge.length);
      bytes += sge.length;
    }
  } else {
    std::copy_n(request.sg_list, what.sge_count, to);
  }
  send_tail_++;
}

// Executes queued requests until one has to wait again.
bool QueuePair::drain() {
  bool good = true;
  while (good && send_head_ != send_tail_) {
    const SendWork& work = send_works_[send_head_ & send_mask_];
    const Outcome outcome = execute(work.request);
    if (outcome.waits) break;
    const bool signaled = signal_all_ || (work.flags & IBV_SEND_SIGNALED);
    send_head_++;
    good = settle(outcome, work.wr_id, work.request.opcode, static_cast<uint32_t>(work.request.length),
                  signaled);
  }
  let_go();
  if (send_head_ == send_tail_) set_waiting(false);
  return good;
}

void QueuePair::set_waiting(bool waiting) {
  if (waiting_.load(std::memory_order_relaxed) == waiting) return;
  waiting_.store(waiting, std::memory_order_relaxed);
  send_queue()->waiting.fetch_add(waiting ? 1 : -1, std::memory_order_relaxed);
}

// For conditions whose end is not signalled.
void QueuePair::tick_soon() {
  ticks_.store(true);
  ProgressThread::instance().call(errand_);
}

void QueuePair::progress() {
  bool good = true;
  {
    // First the lock: a post that has told the peer that it waits, but not us yet, holds it.
    const std::lock_guard lock(send_lock_);
    if (waiting_.load(std::memory_order_relaxed) &&
        state_.load(std::memory_order_relaxed) == State::connected) {
      good = drain();
    }
  }
  if (!good) fail(end_);
  const std::lock_guard ending(ending_mutex_);
  if (!finish_end()) look_soon();
}

void QueuePair::progress_from_poll() {
  if (!waiting_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(send_lock_);
  if (state_.load(std::memory_order_relaxed) != State::connected || drain()) return;
  fail_later(end_);
}

void QueuePair::flush_sends(ibv_wc_status oldest) {
  ibv_wc_status status = oldest;
  while (send_head_ != send_tail_) {
    const SendWork& work = send_works_[send_head_++ & send_mask_];
    report_send(work.wr_id, work.request.opcode, static_cast<uint32_t>(work.request.length), status, 0);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  set_waiting(false);
}

}  // namespace rdmakit::shm
