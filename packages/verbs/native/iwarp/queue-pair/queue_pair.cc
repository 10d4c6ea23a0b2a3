#include "iwarp/queue-pair/queue_pair.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/null_with_errno.h"
#include "iwarp/completion/completion_queue.h"
#include "iwarp/memory/protection_domain.h"
#include "iwarp/progress_thread.h"
#include "iwarp/queue-pair/shared_receive_queue.h"
#include "iwarp/setup/connection.h"

namespace rdmakit::iwarp {
namespace {

std::atomic<uint32_t> next_queue_pair_number{1};

}  // namespace

Failure Failure::protocol(TerminateCode code) {
  Failure failure;
  failure.send_terminate = true;
  failure.terminate.code = code;
  failure.vendor_error =
      static_cast<uint32_t>(code.layer) << 16 | static_cast<uint32_t>(code.type) << 8 | code.code;
  failure.status = EPROTO;
  return failure;
}

Failure Failure::blame(TerminateCode code, const Segment& segment) {
  Failure failure = protocol(code);
  failure.terminate.has_segment = true;
  failure.terminate.segment = segment;
  return failure;
}

Failure Failure::lost(int error) {
  Failure failure;
  failure.send_status = IBV_WC_RETRY_EXC_ERR;
  failure.status = error;
  return failure;
}

std::unique_ptr<QueuePair> QueuePair::create(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  errno = check_attributes(*attributes);
  if (errno == 0 && CompletionQueue::of(attributes->send_cq)->progress_mode() !=
                        CompletionQueue::of(attributes->recv_cq)->progress_mode()) {
    errno = EINVAL;
  }
  if (errno != 0) return nullptr;
  try {
    std::unique_ptr<QueuePair> queue_pair(new QueuePair(pd, *attributes));
    attributes->cap = queue_pair->cap_;
    return queue_pair;
  } catch (const std::bad_alloc&) {
    return null_with_errno(ENOMEM);
  }
}

QueuePair::QueuePair(ibv_pd* pd, const ibv_qp_init_attr& attributes)
    : QueuePairBase(pd, attributes, granted(attributes),
                    next_queue_pair_number.fetch_add(1, std::memory_order_relaxed) & 0xffffff) {
  shared_ = static_cast<SharedReceiveQueue*>(srq);
  receive_pd_ = shared_ == nullptr ? pd : shared_->pd;
  send_mask_ = cap_.max_send_wr - 1;
  receive_mask_ = cap_.max_recv_wr - 1;
  // Left untouched: an idle queue pair costs address space, not memory.
  send_works_ = std::make_unique_for_overwrite<SendWork[]>(cap_.max_send_wr);
  send_sges_ = std::make_unique_for_overwrite<ibv_sge[]>(size_t{cap_.max_send_wr} * cap_.max_send_sge);
  inline_ = std::make_unique_for_overwrite<uint8_t[]>(size_t{cap_.max_send_wr} * cap_.max_inline_data);
  receive_works_ = std::make_unique_for_overwrite<ReceiveWork[]>(cap_.max_recv_wr);
  receive_sges_ = std::make_unique_for_overwrite<ibv_sge[]>(size_t{cap_.max_recv_wr} * cap_.max_recv_sge);
  send_queue()->users++;
  receive_queue()->users++;
  static_cast<ProtectionDomain*>(pd)->users++;
  if (shared_ != nullptr) shared_->users++;
}

QueuePair::~QueuePair() {
  if (shared_ != nullptr) shared_->users--;
  send_queue()->users--;
  receive_queue()->users--;
  static_cast<ProtectionDomain*>(pd)->users--;
}

CompletionQueue* QueuePair::send_queue() const { return CompletionQueue::of(send_cq); }
CompletionQueue* QueuePair::receive_queue() const { return CompletionQueue::of(recv_cq); }

int QueuePair::modify(ibv_qp_attr* attributes, int mask) {
  constexpr int kKnown =
      IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  constexpr unsigned kAccess = IBV_ACCESS_LOCAL_WRITE | kRemoteAccess;
  if (mask & ~kKnown) return EOPNOTSUPP;
  if ((mask & IBV_QP_PORT) && attributes->port_num != 1) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) && attributes->pkey_index != 0) return EINVAL;
  if ((mask & IBV_QP_ACCESS_FLAGS) && (attributes->qp_access_flags & ~kAccess)) return EINVAL;
  if (mask & IBV_QP_STATE) {
    const int error = change_state(attributes->qp_state);
    if (error != 0) return error;
  }
  if (mask & IBV_QP_ACCESS_FLAGS)
    remote_access_.store(static_cast<int>(attributes->qp_access_flags) & kRemoteAccess);
  return 0;
}

int QueuePair::change_state(ibv_qp_state wanted) {
  switch (wanted) {
    case IBV_QPS_ERR: {
      fail(Failure{});
      return 0;
    }
    case IBV_QPS_INIT: {
      const std::lock_guard lock(send_mutex_);
      const State state = state_.load();
      if (state != State::reset && state != State::init) return EINVAL;
      enter(State::init, IBV_QPS_INIT);
      return 0;
    }
    case IBV_QPS_RESET:
      return reset();
    default:
      return EOPNOTSUPP;  // connecting takes a ConnectionId
  }
}

// Returns it to its initial state. One that has been connected had its stream; only destroy_qp is possible.
int QueuePair::reset() {
  const std::lock_guard receive_lock(receive_mutex_);
  const std::lock_guard send_lock(send_mutex_);
  if (socket_fd_ >= 0) return EOPNOTSUPP;
  const std::lock_guard posting_lock(receive_queue_mutex_);
  send_queue()->forget(&send_polled_);
  receive_queue()->forget(&receive_polled_);
  send_head_ = send_next_ = send_tail_;
  send_polled_.store(send_tail_);
  const uint32_t tail = receive_tail_.load();
  receive_head_.store(tail);
  receive_polled_.store(tail);
  remote_access_.store(kRemoteAccess);
  enter(State::reset, IBV_QPS_RESET);
  return 0;
}

void QueuePair::query(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const {
  const State state = query_base(attributes, init);
  attributes->qp_access_flags = static_cast<unsigned>(remote_access_.load());
  if (state != State::connected) return;
  attributes->max_rd_atomic = static_cast<uint8_t>(outbound_reads_);
  attributes->max_dest_rd_atomic = static_cast<uint8_t>(inbound_reads_);
}

int QueuePair::start(StartParameters&& parameters) {
  {
    const std::lock_guard receive_lock(receive_mutex_);
    const std::lock_guard send_lock(send_mutex_);
    if (state_.load() != State::init) return ECONNABORTED;
    try {
      if (parameters.receive_markers) buffer_size_ = kMarkedReceiveBuffer;
      buffer_ = std::make_unique_for_overwrite<uint8_t[]>(buffer_size_);
      if (parameters.send_markers) batch_.use_markers(parameters.sent);
      if (parameters.inbound_reads > 0) {
        stage_size_ = std::max(kResponseStage, parameters.max_ulpdu);
        stage_ = std::make_unique_for_overwrite<uint8_t[]>(stage_size_);
      }
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    }
    end_ = std::min(parameters.received.size(), buffer_size_);
    if (end_ > 0) std::memcpy(buffer_.get(), parameters.received.data(), end_);
    socket_ = std::move(parameters.socket);
    socket_fd_ = socket_.get();
    max_ulpdu_ = parameters.max_ulpdu;
    crc_ = parameters.crc;
    receive_markers_ = parameters.receive_markers;
    inbound_reads_ = std::min(parameters.inbound_reads, kMaxReadDepth);
    outbound_reads_ = std::min(parameters.outbound_reads, kMaxReadDepth);
    hold_sends_ = parameters.hold_sends;
    if (parameters.read_was_sent) {
      rtr_response_wanted_ = true;
      read_request_sequence_ = 2;
    }
    enter(State::connected, IBV_QPS_RTS);
  }
  if (send_queue()->progress_mode() == Progress::automatic) {
    PollSet& set = ProgressThread::instance().poll_set();
    const uint64_t token = set.add(this, socket_fd_, EPOLLIN);
    if (token == 0) return errno;  // the caller fails this queue pair
    watch_with(&set, token);
  }
  int error = send_queue()->attach(this, socket_fd_);
  if (error == 0 && receive_queue() != send_queue()) error = receive_queue()->attach(this, socket_fd_);
  if (error != 0) return error;
  if (!parameters.received.empty()) progress(EPOLLIN, Contention::wait);
  return 0;
}

void QueuePair::watch_with(PollSet* set, uint64_t token) {
  const std::lock_guard lock(send_mutex_);
  watches_[watch_count_++] = {set, token};
  if (state_.load() != State::connected) {
    set->mute(socket_fd_);  // it ended while it was being added
  } else if (backlog_.load(std::memory_order_relaxed)) {
    set->change(token, socket_fd_, EPOLLIN | EPOLLOUT);
  }
}

void QueuePair::fail(const Failure& failure) {
  const std::lock_guard receive_lock(receive_mutex_);
  const std::lock_guard send_lock(send_mutex_);
  fail_locked(failure);
}

// Called only by the progress thread, without a lock: a posting thread may hold the lock for as long as the
// kernel searches for memory.
bool QueuePair::look_at_host() {
  if (state_.load() != State::connected) return false;
  const auto now = std::chrono::steady_clock::now();
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket_fd_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return true;
  const auto passed = std::chrono::duration_cast<HostWatch::Milliseconds>(now - looked_);
  looked_ = now;
  if (!host_watch_.gone(info, passed)) return true;
  fail(Failure::lost(ETIMEDOUT));
  return false;
}

void QueuePair::fail_locked(const Failure& failure) {
  const State before = state_.load();
  if (before == State::error) return;
  if (before == State::connected) {
    if (failure.send_terminate) send_terminate(failure);
    // A half sent FPDU cannot be finished, so the peer shall see a broken stream; else an orderly end.
    ::shutdown(socket_fd_, SHUT_WR);
    for (uint32_t i = 0; i < watch_count_; i++) watches_[i].set->mute(socket_fd_);
  }
  enter(State::error, IBV_QPS_ERR);
  batch_.clear();
  flush_sends(failure);
  flush_receives(failure);
  tell_of_end(failure);
  if (before == State::connected) Connection::queue_pair_ended(connection_, failure.status);
}

// Reports an error of this side, or of the peer's request, as an event if no completion reports it.
void QueuePair::tell_of_end(const Failure& failure) {
  if (shared_ != nullptr) last_receive_event_.raise(IBV_EVENT_QP_LAST_WQE_REACHED);
  const bool completed =
      failure.send_status != IBV_WC_WR_FLUSH_ERR || failure.receive_status != IBV_WC_WR_FLUSH_ERR;
  if (!failure.send_terminate || completed) return;
  const TerminateCode code = failure.terminate.code;
  if (is_protection_error(code)) {
    end_event_.raise(IBV_EVENT_QP_ACCESS_ERR);
  } else if (code == terminate::local_catastrophic || code == terminate::mpa_crc) {
    end_event_.raise(IBV_EVENT_QP_FATAL);
  } else {
    end_event_.raise(IBV_EVENT_QP_REQ_ERR);
  }
}

void QueuePair::send_terminate(const Failure& failure) {
  // Only between FPDUs: first the rest of those that are under way. When the socket takes no more,
  // the peer learns of the end from the end.
  if (dead_) return;
  if (!batch_.empty() && (!batch_.pin_again(pd) || send_batch() != Sent::all)) return;
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::terminate;
  segment.queue = kTerminateQueue;
  segment.sequence = 1;
  std::array<uint8_t, kMaxTerminateLength> payload;
  const size_t length = build_terminate(payload.data(), failure.terminate,
                                        failure.read_request ? failure.read_request->data() : nullptr);
  const uint32_t ulpdu = static_cast<uint32_t>(kUntaggedHeaderLength + length);
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kUntaggedHeaderLength), segment);
  std::memcpy(batch_.write(static_cast<uint32_t>(length)), payload.data(), length);
  built_position_ += batch_.end_fpdu();
  send_batch();
}

void QueuePair::retire() {
  send_queue()->detach(this);
  if (receive_queue() != send_queue()) receive_queue()->detach(this);
  std::array<Watch, 3> watches;
  uint32_t count;
  {
    const std::lock_guard lock(send_mutex_);
    watches = watches_;
    count = std::exchange(watch_count_, 0);
  }
  for (uint32_t i = 0; i < count; i++) watches[i].set->remove(watches[i].token, socket_fd_);
  const std::lock_guard receive_lock(receive_mutex_);
  const std::lock_guard send_lock(send_mutex_);
  if (state_.load() == State::connected) {
    ::shutdown(socket_fd_, SHUT_WR);
    Connection::queue_pair_ended(connection_, 0);
  }
  enter(State::error, IBV_QPS_ERR);
  batch_.clear();
  socket_.reset();
  if (bound_windows_) MemoryTable::instance().invalidate_all(this);
  send_queue()->forget(&send_polled_);
  receive_queue()->forget(&receive_polled_);
  if (taken_ != nullptr) shared_->release(std::exchange(taken_, nullptr));
}

// Hot path.
void QueuePair::progress(uint32_t events, Contention contention) {
  if (state_.load(std::memory_order_acquire) != State::connected) return;
  const bool send_too = (events & EPOLLOUT) || contention == Contention::give_up;
  if (send_too && backlog_.load(std::memory_order_relaxed)) {
    Result failure;
    {
      const std::lock_guard lock(send_mutex_);
      if (state_.load() == State::connected) failure = transmit(8);
    }
    if (failure) return fail(*failure);
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) receive(contention);
}
// End of hot path.

}  // namespace rdmakit::iwarp
