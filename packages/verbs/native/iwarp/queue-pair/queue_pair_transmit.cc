// From the send queue and the peer's READ requests to FPDUs in the socket. All under send_mutex_.
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {
namespace {

// How much of a message of `length` bytes an FPDU carries. All of them are about as long, so that none of a
// large message is a small one, which would go through the peer's buffer. They start at cache line boundaries
// of the message, which is what the kernel copies best.
uint32_t payload_share(uint32_t length, uint32_t max_ulpdu, size_t header) {
  constexpr uint32_t kLine = 64;
  const uint32_t limit = max_ulpdu - static_cast<uint32_t>(header);
  if (length <= limit || limit < 4096) return limit;
  const uint32_t aligned = limit & ~(kLine - 1);
  const uint32_t count = (length - 1) / aligned + 1;  // a peer may ask for 4 GiB less one byte
  const uint32_t share = (length - 1) / count + 1;
  return (share + kLine - 1) & ~(kLine - 1);
}

}  // namespace

// Hot path: no allocation; system calls are sends, and one epoll_ctl when a backlog begins or ends.
QueuePair::Result QueuePair::transmit(int sends) {
  while (!dead_) {
    if (batch_.empty()) {
      if (failed_work_) return failed_work_;
      failed_work_ = fill_batch();
      if (batch_.empty()) {
        if (failed_work_) return failed_work_;
        complete_sends();  // what needs no bytes
        set_backlog(false);
        return std::nullopt;
      }
    } else if (!batch_.pin_again(pd)) {
      return gone_under_batch();
    }
    const Sent sent = send_batch();
    batch_.unpin();
    complete_sends();
    if (sent == Sent::dead) {
      dead_ = true;
      return std::nullopt;
    }
    if (sent == Sent::unmapped) [[unlikely]]
      return unmapped_under_batch();
    if (sent == Sent::blocked || --sends <= 0) {
      // After the last send there may be nothing left; the thread that continues will find out.
      set_backlog(true);
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// A region was deregistered under what is built already. It is told of the request whose it is; a READ
// response has none.
Failure QueuePair::gone_under_batch() {
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  const uint32_t end = cursor_.active && !cursor_.response ? send_next_ + 1 : send_next_;
  for (uint32_t index = send_head_; index != end; index++) {
    const SendWork& work = send_work(index);
    const bool sends = !work.answered && work.opcode != IBV_WR_BIND_MW && work.opcode != IBV_WR_LOCAL_INV;
    Target target;
    if (!sends || work.inlined || gather(pd, send_sges(index), work.sge_count, 0, work.length, 0, target))
      continue;
    failure.send_status = IBV_WC_LOC_PROT_ERR;
    failure.send_index = index;
    break;
  }
  return failure;
}

// Memory is registered, but not mapped: that of the request whose byte is the next one to be sent.
Failure QueuePair::unmapped_under_batch() const {
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  uint32_t index = send_head_;
  while (index != send_next_ && send_work(index).end_position <= sent_position_) index++;
  failure.send_status = IBV_WC_LOC_PROT_ERR;
  failure.send_index = index;
  return failure;
}

QueuePair::Sent QueuePair::send_batch() {
  bool one_by_one = false;
  while (!batch_.empty()) {
    ssize_t sent;
    if (one_by_one || batch_.piece_count() == 1) {
      sent = ::send(socket_fd_, batch_.pieces()->iov_base, batch_.pieces()->iov_len,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    } else {
      msghdr message{};
      message.msg_iov = batch_.pieces();
      message.msg_iovlen = batch_.piece_count();
      sent = ::sendmsg(socket_fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EFAULT) [[unlikely]] {
        // The kernel copies several pieces before it says so of one. By itself each good one is sent.
        if (one_by_one) return Sent::unmapped;
        one_by_one = true;
        continue;
      }
      return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? Sent::blocked : Sent::dead;
    }
    sent_position_ += static_cast<uint64_t>(sent);
    batch_.advance(static_cast<size_t>(sent));
  }
  stage_used_ = 0;
  return Sent::all;
}

void QueuePair::set_backlog(bool backlog) {
  if (backlog_.load(std::memory_order_relaxed) == backlog) return;
  backlog_.store(backlog, std::memory_order_relaxed);
  for (uint32_t i = 0; i < watch_count_; i++) {
    watches_[i].set->change(watches_[i].token, socket_fd_, backlog ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

QueuePair::Result QueuePair::fill_batch() {
  bool fits = true;
  while (fits) {
    if (!cursor_.active && !pick()) return std::nullopt;
    Result failure = cursor_.response ? append_response(fits) : append(send_work(send_next_), fits);
    if (failure) return failure;
  }
  return std::nullopt;
}

// Begins the next message: own messages and READ responses take turns, and neither is cut in two by
// the other.
bool QueuePair::pick() {
  const bool response = responses_count_ > 0;
  bool own = send_next_ != send_tail_ && (!hold_sends_ || local_work_next());
  if (own) {
    const SendWork& work = send_work(send_next_);
    const uint32_t reading = reads_tail_ - reads_head_;
    // ORD (RFC 6581): excess READs and atomics, and everything behind them, wait here. An empty READ as the
    // Ready-To-Receive message is one of those at once.
    const uint32_t at_once = rtr_response_wanted_ ? reading + 1 : reading;
    if (work.answered && at_once >= std::max(outbound_reads_, 1u)) own = false;
    if (work.fence && reading > 0) own = false;
  }
  if (!response && !own) return false;
  cursor_ = Cursor{};
  cursor_.active = true;
  cursor_.response = response && (response_turn_ || !own);
  response_turn_ = !cursor_.response;
  if (!cursor_.response) {
    switch (send_work(send_next_).opcode) {
      case IBV_WR_RDMA_READ:
        cursor_.step = Step::read_request;
        break;
      case IBV_WR_SEND_WITH_IMM:
        cursor_.step = Step::immediate_before;
        break;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        cursor_.step = Step::atomic_request;
        break;
      case IBV_WR_BIND_MW:
      case IBV_WR_LOCAL_INV:
        cursor_.step = Step::local;
        break;
      default:
        cursor_.step = Step::data;
    }
  }
  return true;
}

QueuePair::Result QueuePair::append(SendWork& work, bool& fits) {
  Result failure;
  switch (cursor_.step) {
    case Step::immediate_before:
      fits = append_immediate(work, true);
      if (fits) cursor_.step = Step::data;
      return failure;
    case Step::data:
      failure = append_data(work, fits);
      if (failure || !fits || cursor_.step == Step::data) return failure;
      break;
    case Step::immediate_after:
      fits = append_immediate(work, false);
      if (!fits) return failure;
      cursor_.step = Step::finished;
      break;
    case Step::read_request:
    case Step::atomic_request:
      if (outbound_reads_ == 0) {  // the peer serves none: the wait would never end
        failure = Failure{};
        failure->send_status = IBV_WC_REM_INV_REQ_ERR;
        failure->send_index = send_next_;
        failure->status = EPROTO;
        return failure;
      }
      fits = cursor_.step == Step::read_request ? append_read_request(work) : append_atomic_request(work);
      if (!fits) return failure;
      cursor_.step = Step::finished;
      break;
    case Step::local:
      failure = execute_local(work);
      if (failure) return failure;
      cursor_.step = Step::finished;
      break;
    case Step::finished:
      break;
  }
  if (cursor_.step == Step::finished) {
    work.end_position = built_position_;
    send_next_++;
    cursor_.active = false;
  }
  return failure;
}

QueuePair::Result QueuePair::append_data(SendWork& work, bool& fits) {
  const bool write = work.opcode == IBV_WR_RDMA_WRITE || work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  Segment segment;
  segment.tagged = write;
  const size_t header = write ? kTaggedHeaderLength : kUntaggedHeaderLength;
  const uint32_t length =
      std::min(work.length - cursor_.offset, payload_share(work.length, max_ulpdu_, header));
  const bool copied = work.inlined || length <= Batch::kCopied;
  // What is lent may have others before and behind it in its element.
  fits = batch_.fits(copied ? 0 : work.sge_count + (lent_ == nullptr ? 0 : 2), copied ? length : 0);
  if (!fits) return std::nullopt;

  Target target;
  if (!work.inlined && length > 0 &&
      !gather(pd, send_sges(send_next_), work.sge_count, cursor_.offset, length, 0, target)) {
    Failure failure = Failure::protocol(terminate::local_catastrophic);
    failure.send_status = IBV_WC_LOC_PROT_ERR;
    failure.send_index = send_next_;
    return failure;
  }
  segment.last = cursor_.offset + length == work.length;
  if (write) {
    segment.opcode = Opcode::write;
    segment.stag = work.remote_key;
    segment.offset = work.remote_address + cursor_.offset;
  } else {
    segment.opcode = work.solicited ? Opcode::send_solicited : Opcode::send;
    if (work.opcode == IBV_WR_SEND_WITH_INV) [[unlikely]] {
      segment.opcode = work.solicited ? Opcode::send_solicited_invalidate : Opcode::send_invalidate;
      segment.invalidate = work.immediate;
    }
    segment.queue = kSendQueue;
    segment.sequence = send_sequence_;
    segment.message_offset = cursor_.offset;
  }
  const uint32_t ulpdu = static_cast<uint32_t>(header) + length;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(static_cast<uint32_t>(header)), segment);
  if (work.inlined) {
    if (length > 0) std::memcpy(batch_.write(length), inline_data(send_next_) + cursor_.offset, length);
  } else {
    for (uint32_t i = 0; i < target.count; i++) {
      iovec& piece = target.pieces[i];
      while (piece.iov_len > 0) {
        uint64_t run = piece.iov_len;
        uint8_t* at = static_cast<uint8_t*>(piece.iov_base);
        uint8_t* const from = lent_ == nullptr || !write ? at : lent_->find(at, run);
        if (copied)
          std::memcpy(batch_.write(static_cast<uint32_t>(run)), from, run);
        else
          batch_.reference(from, static_cast<uint32_t>(run), target.keys[i], std::move(target.pins[i]));
        piece = {at + run, piece.iov_len - run};
      }
    }
  }
  built_position_ += batch_.end_fpdu();
  cursor_.offset += length;
  if (segment.last) {
    if (!write) send_sequence_++;
    cursor_.step = work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM ? Step::immediate_after : Step::finished;
  }
  return std::nullopt;
}

// What was lent goes back: its bytes that are not in the socket are sent from their place, by whoever
// continues.
void QueuePair::copy_lent() {
  if (!batch_.empty() || send_next_ != send_tail_) {
    std::memcpy(reinterpret_cast<void*>(lent_->address), lent_->data, lent_->length);
    batch_.put_back(*lent_);
  }
  lent_ = nullptr;
}

bool QueuePair::append_immediate(const SendWork& work, bool send_follows) {
  if (!batch_.fits(0, kImmediateLength)) return false;
  Segment segment;
  segment.last = true;
  segment.opcode = work.solicited && !send_follows ? Opcode::immediate_solicited : Opcode::immediate;
  segment.queue = kSendQueue;
  segment.sequence = send_sequence_++;
  const uint32_t ulpdu = kUntaggedHeaderLength + kImmediateLength;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kUntaggedHeaderLength), segment);
  build_immediate(batch_.write(kImmediateLength), {work.immediate, send_follows});
  built_position_ += batch_.end_fpdu();
  return true;
}

bool QueuePair::append_read_request(SendWork& work) {
  if (!batch_.fits(0, kReadRequestLength)) return false;
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::read_request;
  segment.queue = kReadRequestQueue;
  segment.sequence = read_request_sequence_++;
  work.read_sequence = segment.sequence;
  // The sink is named by the request's own number and offset 0, not by a region: the response is
  // matched to this work request, so the peer learns no key and no address of ours.
  const ReadRequest request{segment.sequence, 0, work.length, work.remote_key, work.remote_address};
  const uint32_t ulpdu = kUntaggedHeaderLength + kReadRequestLength;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kUntaggedHeaderLength), segment);
  build_read_request(batch_.write(kReadRequestLength), request);
  built_position_ += batch_.end_fpdu();
  reads_[reads_tail_++ % kMaxReadDepth] = send_next_;
  return true;
}

// A READ may be served while the local application changes the memory. The CRC must be of the bytes
// that are sent, so they are copied first: short ones into the scratch buffer, others one behind the other
// into the stage, which is free again when the batch is sent.
QueuePair::Result QueuePair::append_response(bool& fits) {
  const Response& response = responses_[responses_head_];
  if (response.atomic) return append_atomic_response(response.operation, fits);
  const ReadRequest& request = response.read;
  const uint32_t length = std::min(request.length - cursor_.offset,
                                   payload_share(request.length, max_ulpdu_, kTaggedHeaderLength));
  const bool staged = length > Batch::kCopied;
  fits = batch_.fits(staged ? 1 : 0, staged ? 0 : length) && (!staged || length <= stage_size_ - stage_used_);
  if (!fits) return std::nullopt;

  const uint64_t source = request.source_offset + cursor_.offset;
  MemoryTable::Pin pin;
  if (length > 0) {
    MemoryTable::Fault fault;
    pin = pin_for_peer(request.source_stag, IBV_ACCESS_REMOTE_READ, source, length, fault);
    if (!pin) return Failure::protocol(terminate::rdmap_invalid_stag);  // deregistered meanwhile
  }
  Segment segment;
  segment.tagged = true;
  segment.last = cursor_.offset + length == request.length;
  segment.opcode = Opcode::read_response;
  segment.stag = request.sink_stag;
  segment.offset = request.sink_offset + cursor_.offset;
  const uint32_t ulpdu = kTaggedHeaderLength + length;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kTaggedHeaderLength), segment);
  if (staged) {
    uint8_t* copy = stage_.get() + stage_used_;
    std::memcpy(copy, reinterpret_cast<const void*>(source), length);
    batch_.reference(copy, length, 0, MemoryTable::Pin());
    stage_used_ += length;
  } else if (length > 0) {
    std::memcpy(batch_.write(length), reinterpret_cast<const void*>(source), length);
  }
  built_position_ += batch_.end_fpdu();
  cursor_.offset += length;
  if (segment.last) response_built();
  return std::nullopt;
}

// The oldest is wholly in FPDUs.
void QueuePair::response_built() {
  responses_head_ = responses_head_ + 1 == responses_.size() ? 0 : responses_head_ + 1;
  responses_count_--;
  rtr_read_waits_ = false;  // it was the first
  cursor_.active = false;
}

// End of hot path.

}  // namespace rdmakit::iwarp
