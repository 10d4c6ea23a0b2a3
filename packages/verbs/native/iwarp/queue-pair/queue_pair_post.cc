// The work queues of a queue pair: posting to them and completing their entries.
#include <cerrno>
#include <cstring>

#include "iwarp/completion/completion_queue.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

// A post_send sends at most this many batches itself. The thread that moves this queue pair's data sends the
// rest: a caller must not be blocked for as long as the peer takes to read a gigabyte.
constexpr int kSendsWhilePosting = 16;

// Hot path: no allocation; one lock; the system calls are sends.
int QueuePair::post_send(ibv_send_wr* request, ibv_send_wr** bad, const LentBytes* lent) {
  int error = 0;
  Result failure;
  bool lost = false;
  {
    const std::lock_guard lock(send_mutex_);
    const State state = state_.load(std::memory_order_relaxed);
    if (state != State::connected && state != State::error) {
      *bad = request;
      return EINVAL;
    }
    for (; request != nullptr; request = request->next) {
      uint64_t length = 0;
      error = check(*request, length);
      if (error != 0) {
        *bad = request;
        break;
      }
      enqueue(*request, static_cast<uint32_t>(length));
    }
    lent_ = lent;
    if (state == State::error) {
      flush_sends(Failure{});
    } else if (!backlog_.load(std::memory_order_relaxed)) {
      failure = transmit(kSendsWhilePosting);
      lost = dead_;
    }
    if (lent != nullptr) copy_lent();
  }
  if (failure) {
    fail(*failure);
  } else if (lost) [[unlikely]] {
    receive(Contention::give_up);  // which finds out how the connection ended
  }
  return error;
}

int QueuePair::check(const ibv_send_wr& request, uint64_t& length) const {
  if (int error = check_transfer(request, length); error != 0) [[unlikely]] {
    if (error == EOPNOTSUPP) error = check_local(request);
    if (error != 0) return error;
  }
  // An entry is in use until its completion has been polled, an unsignaled one until a later completion has
  // been: as on a card, which gives no other report of what is done (ibv_post_send(3)).
  return send_tail_ - send_polled_.load(std::memory_order_acquire) > send_mask_ ? ENOMEM : 0;
}

void QueuePair::enqueue(const ibv_send_wr& request, uint32_t length) {
  if (send_head_ == send_tail_) send_base_ = send_tail_;
  SendWork& work = send_work(send_tail_);
  work.wr_id = request.wr_id;
  work.remote_address = request.wr.rdma.remote_addr;
  work.remote_key = request.wr.rdma.rkey;
  work.immediate = request.imm_data;
  work.length = length;
  work.received = 0;
  work.opcode = request.opcode;
  work.inlined = request.send_flags & IBV_SEND_INLINE;
  work.signaled = signal_all_ || (request.send_flags & IBV_SEND_SIGNALED);
  work.solicited = request.send_flags & IBV_SEND_SOLICITED;
  work.fence = request.send_flags & IBV_SEND_FENCE;
  work.answered = request.opcode == IBV_WR_RDMA_READ;
  work.done = false;
  if (is_atomic(request.opcode)) [[unlikely]] {
    work.answered = true;
    work.remote_key = request.wr.atomic.rkey;
    work.operands[0] = request.wr.atomic.compare_add;
    work.operands[1] = request.wr.atomic.swap;
  } else if (request.opcode == IBV_WR_BIND_MW) [[unlikely]] {
    note_binding(request, work);
  }
  work.sge_count = 0;
  if (work.inlined) {
    uint8_t* to = inline_data(send_tail_);
    for (int i = 0; i < request.num_sge; i++) {
      const ibv_sge& sge = request.sg_list[i];
      if (sge.length > 0) std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
      to += sge.length;
    }
  } else {
    ibv_sge* to = send_sges(send_tail_);
    for (int i = 0; i < request.num_sge; i++) {
      if (request.sg_list[i].length > 0) to[work.sge_count++] = request.sg_list[i];
    }
  }
  send_tail_++;
}

// Completes finished requests in order: a READ or an atomic when the response is there; anything else when
// its last byte is in the socket (RFC 5040: the LLP is reliable, so the buffer may be reused).
void QueuePair::complete_sends() {
  while (send_head_ != send_next_) {
    const SendWork& work = send_work(send_head_);
    const bool done = work.answered ? work.done : work.end_position <= sent_position_;
    if (!done) return;
    if (work.signaled) report_send(send_head_, IBV_WC_SUCCESS, 0);
    send_head_++;
  }
}

// The oldest that waits for a response has it.
void QueuePair::response_complete(SendWork& work) {
  work.done = true;
  reads_head_++;
  complete_sends();
  if (send_next_ != send_tail_) transmit_wanted_ = true;  // READs and fences may have waited for this
}

void QueuePair::report_send(uint32_t index, ibv_wc_status status, uint32_t vendor_error) {
  const SendWork& work = send_work(index);
  ibv_wc completion{};
  completion.wr_id = work.wr_id;
  completion.status = status;
  completion.vendor_err = vendor_error;
  completion.opcode = completion_opcode(work.opcode);
  completion.byte_len = work.answered ? work.length : 0;
  completion.qp_num = qp_num;
  send_queue()->push(completion, status != IBV_WC_SUCCESS, &send_polled_, index + 1);
}

int QueuePair::post_receive(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int error = 0;
  {
    const std::lock_guard lock(receive_queue_mutex_);
    if (state_.load(std::memory_order_relaxed) == State::reset || shared_ != nullptr) {
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
      if (error != 0) {
        *bad = request;
        break;
      }
      receive_works_[tail & receive_mask_].fill(
          *request, &receive_sges_[size_t{tail & receive_mask_} * cap_.max_recv_sge]);
      tail++;
    }
    receive_tail_.store(tail, std::memory_order_seq_cst);
  }
  // fail_locked() sets the state and then flushes, this publishes and then looks: one sees the other.
  if (state_.load(std::memory_order_seq_cst) == State::error) [[unlikely]] {
    const std::lock_guard lock(receive_mutex_);
    // After a RESET meanwhile, what is in the queue was posted in another life.
    if (state_.load() == State::error) flush_receives(Failure{});
  }
  return error;
}
// End of hot path.

void QueuePair::flush_sends(const Failure& failure) {
  complete_sends();
  const uint32_t blamed = failure.send_index.value_or(send_head_);
  for (; send_head_ != send_tail_; send_head_++) {
    const bool own = send_head_ == blamed && failure.send_status != IBV_WC_WR_FLUSH_ERR;
    report_send(send_head_, own ? failure.send_status : IBV_WC_WR_FLUSH_ERR, own ? failure.vendor_error : 0);
  }
  send_next_ = send_head_;
  cursor_ = Cursor{};
  reads_head_ = reads_tail_;
  responses_count_ = 0;
}

void QueuePair::flush_receives(const Failure& failure) {
  if (shared_ != nullptr) return flush_shared_receive(failure);
  ibv_wc_status status = failure.receive_status;
  uint32_t head = receive_head_.load(std::memory_order_relaxed);
  for (; head != receive_tail_.load(std::memory_order_seq_cst); head++) {
    ibv_wc completion{};
    completion.wr_id = receive_works_[head & receive_mask_].wr_id;
    completion.status = status;
    completion.opcode = IBV_WC_RECV;
    completion.qp_num = qp_num;
    receive_queue()->push(completion, true, &receive_polled_, head + 1);
    status = IBV_WC_WR_FLUSH_ERR;
  }
  receive_head_.store(head, std::memory_order_release);
}

}  // namespace rdmakit::iwarp
