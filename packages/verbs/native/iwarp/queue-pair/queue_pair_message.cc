// Processing of incoming segments: to which memory a payload goes, and the actions when it is complete. All
// under receive_mutex_. All input of the peer is checked here before it is used.
#include <cerrno>
#include <cstring>

#include "iwarp/completion/completion_queue.h"
#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

namespace {

// The peer's Terminate as the status of the work request that it is about.
ibv_wc_status status_of(TerminateCode code) {
  if (code == terminate::ddp_no_buffer) return IBV_WC_RNR_RETRY_EXC_ERR;
  if (code == terminate::ddp_too_long) return IBV_WC_REM_INV_REQ_ERR;
  if (is_protection_error(code)) return IBV_WC_REM_ACCESS_ERR;
  return IBV_WC_REM_OP_ERR;
}

// An application may wait for a WRITE by polling the memory of a later WRITE, so earlier placements must be
// visible first.
inline void order_placements() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");  // stores are not reordered with stores
#elif defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");
#else
  __sync_synchronize();
#endif
}

}  // namespace

// Hot path.
QueuePair::Result QueuePair::begin_segment(const Segment& segment, Placement& placement) {
  switch (segment.opcode) {
    case Opcode::write:
      placement.tagged = true;
      placement.stag = segment.stag;
      placement.address = segment.offset;
      return std::nullopt;
    case Opcode::send:
    case Opcode::send_solicited:
    case Opcode::send_invalidate:
    case Opcode::send_solicited_invalidate:
      return begin_send(segment, placement);
    case Opcode::read_response:
      return begin_read_response(segment, placement);
    default:
      return std::nullopt;
  }
}

// The receive for the next message, or for the one that is arriving.
inline QueuePair::Receive QueuePair::next_receive() {
  if (shared_ != nullptr) [[unlikely]]
    return next_shared_receive();
  const uint32_t head = receive_head_.load(std::memory_order_relaxed);
  if (head == receive_tail_.load(std::memory_order_acquire)) return {};
  return {&receive_works_[head & receive_mask_], receive_sges(head)};
}

QueuePair::Result QueuePair::begin_send(const Segment& segment, Placement& placement) {
  // TCP keeps order, so the only acceptable segment is the next one.
  if (segment.sequence != expected_send_) return Failure::blame(terminate::ddp_sequence, segment);
  if (segment.message_offset != send_offset_) return Failure::blame(terminate::ddp_message_offset, segment);
  const Receive receive = next_receive();
  if (receive.work == nullptr) return Failure::blame(terminate::ddp_no_buffer, segment);
  if (segment.payload_length > receive.work->length - send_offset_) {
    Failure failure = Failure::blame(terminate::ddp_too_long, segment);
    failure.receive_status = IBV_WC_LOC_LEN_ERR;
    return failure;
  }
  placement.sges = receive.sges;
  placement.sge_count = receive.work->sge_count;
  placement.offset = send_offset_;
  placement.failed_is_receive = true;
  return std::nullopt;
}

QueuePair::Result QueuePair::begin_read_response(const Segment& segment, Placement& placement) {
  if (rtr_response_wanted_) {
    if (segment.payload_length != 0 || !segment.last) return Failure::blame(terminate::ddp_bounds, segment);
    return std::nullopt;
  }
  const std::lock_guard lock(send_mutex_);
  if (reads_head_ == reads_tail_) return Failure::blame(terminate::rdmap_opcode, segment);
  const uint32_t index = reads_[reads_head_ % kMaxReadDepth];
  const SendWork& work = send_work(index);
  if (work.opcode != IBV_WR_RDMA_READ) return Failure::blame(terminate::rdmap_opcode, segment);
  if (segment.stag != work.read_sequence) return Failure::blame(terminate::ddp_invalid_stag, segment);
  const uint32_t left = work.length - work.received;
  if (segment.offset != work.received || segment.payload_length > left ||
      (segment.last && segment.payload_length != left)) {
    return Failure::blame(terminate::ddp_bounds, segment);
  }
  placement.sges = send_sges(index);
  placement.sge_count = work.sge_count;
  placement.offset = work.received;
  return std::nullopt;
}

QueuePair::Result QueuePair::finish_segment(const Segment& segment, const uint8_t* payload) {
  switch (segment.opcode) {
    case Opcode::write:
      if (!write_continues_) write_length_ = 0;
      write_length_ += segment.payload_length;
      write_continues_ = !segment.last;
      order_placements();
      return std::nullopt;
    case Opcode::send:
    case Opcode::send_solicited:
    case Opcode::send_invalidate:
    case Opcode::send_solicited_invalidate:
      return finish_send(segment);
    case Opcode::immediate:
    case Opcode::immediate_solicited:
      return finish_immediate(segment, payload);
    case Opcode::read_request:
      return finish_read_request(segment, payload);
    case Opcode::read_response:
      return finish_read_response(segment);
    case Opcode::terminate:
      return peer_terminated(segment, payload);
    case Opcode::atomic_request:
      return finish_atomic_request(segment, payload);
    case Opcode::atomic_response:
      return finish_atomic_response(segment, payload);
    default:
      return Failure::blame(terminate::rdmap_opcode, segment);
  }
}

void QueuePair::complete_receive(uint32_t length, ibv_wc_opcode opcode, unsigned flags, uint32_t datum,
                                 bool solicited) {
  const uint32_t head = receive_head_.load(std::memory_order_relaxed);
  ibv_wc completion{};
  if (shared_ != nullptr) [[unlikely]] {
    completion.wr_id = finish_shared_receive();
  } else {
    completion.wr_id = receive_works_[head & receive_mask_].wr_id;
    receive_head_.store(head + 1, std::memory_order_release);
  }
  completion.status = IBV_WC_SUCCESS;
  completion.opcode = opcode;
  completion.byte_len = length;
  completion.qp_num = qp_num;
  completion.wc_flags = flags;
  completion.imm_data = datum;  // or invalidated_rkey, in its place
  receive_queue()->push(completion, solicited, &receive_polled_, head + 1);
}

QueuePair::Result QueuePair::finish_send(const Segment& segment) {
  send_offset_ += segment.payload_length;
  if (!segment.last) return std::nullopt;
  unsigned flags = immediate_held_ ? unsigned{IBV_WC_WITH_IMM} : 0;
  uint32_t datum = immediate_held_ ? immediate_ : 0;
  bool solicited = segment.opcode == Opcode::send_solicited;
  if (segment.opcode == Opcode::send_invalidate || segment.opcode == Opcode::send_solicited_invalidate)
      [[unlikely]] {
    Result failure = invalidate_for_peer(segment);
    if (failure) return failure;
    flags = IBV_WC_WITH_INV;
    datum = segment.invalidate;
    solicited = segment.opcode == Opcode::send_solicited_invalidate;
  }
  complete_receive(send_offset_, IBV_WC_RECV, flags, datum, solicited);
  immediate_held_ = false;
  send_offset_ = 0;
  expected_send_++;
  return std::nullopt;
}

QueuePair::Result QueuePair::finish_immediate(const Segment& segment, const uint8_t* payload) {
  if (segment.sequence != expected_send_) return Failure::blame(terminate::ddp_sequence, segment);
  if (send_offset_ != 0 || immediate_held_) return Failure::blame(terminate::ddp_message_offset, segment);
  const Immediate immediate = parse_immediate(payload);
  immediate_ = immediate.data;
  expected_send_++;
  if (immediate.belongs_to_next_send) {
    immediate_held_ = true;
    return std::nullopt;
  }
  if (next_receive().work == nullptr) return Failure::blame(terminate::ddp_no_buffer, segment);
  const uint64_t written = write_continues_ ? 0 : write_length_;
  complete_receive(static_cast<uint32_t>(written), IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM, immediate_,
                   segment.opcode == Opcode::immediate_solicited);
  return std::nullopt;
}

QueuePair::Result QueuePair::finish_read_request(const Segment& segment, const uint8_t* payload) {
  const ReadRequest request = parse_read_request(payload);
  const auto refuse = [&](TerminateCode code) {
    Failure failure = Failure::blame(code, segment);
    std::memcpy(failure.read_request.emplace().data(), payload, kReadRequestLength);
    return failure;
  };
  if (segment.sequence != expected_read_request_) return refuse(terminate::ddp_sequence);
  expected_read_request_++;
  if (request.length > 0) {  // RFC 5040: the STag of a zero-length READ is not looked at
    MemoryTable::Fault fault;
    const MemoryTable::Pin pin = pin_for_peer(request.source_stag, IBV_ACCESS_REMOTE_READ,
                                              request.source_offset, request.length, fault);
    if (!pin) return refuse(rdmap_fault(fault));
  }
  if (!queue_response({false, request, {}})) return refuse(terminate::ddp_no_buffer);
  return std::nullopt;
}

// False when the peer has asked for more than was negotiated (IRD, RFC 6581).
bool QueuePair::queue_response(const Response& response) {
  // An empty READ as the peer's Ready-To-Receive message, which is its first, takes no place of the
  // negotiated depth: a peer may not count it.
  constexpr uint32_t kFirst = 1;
  const bool empty = !response.atomic && response.read.length == 0;
  const std::lock_guard lock(send_mutex_);
  if (empty && expected_read_request_ == kFirst + 1) rtr_read_waits_ = true;
  if (responses_count_ >= inbound_reads_ + (rtr_read_waits_ ? 1 : 0)) return false;
  responses_[(responses_head_ + responses_count_++) % responses_.size()] = response;
  transmit_wanted_ = true;
  return true;
}

QueuePair::Result QueuePair::finish_read_response(const Segment& segment) {
  const std::lock_guard lock(send_mutex_);
  if (rtr_response_wanted_) {
    rtr_response_wanted_ = false;
    if (send_next_ != send_tail_) transmit_wanted_ = true;
    return std::nullopt;
  }
  SendWork& work = send_work(reads_[reads_head_ % kMaxReadDepth]);
  work.received += segment.payload_length;
  if (segment.last) response_complete(work);
  return std::nullopt;
}
// End of hot path.

QueuePair::Result QueuePair::peer_terminated(const Segment& segment, const uint8_t* payload) {
  Failure failure;
  failure.send_status = IBV_WC_REM_OP_ERR;
  failure.status = ECONNABORTED;
  TerminateMessage message;
  if (!parse_terminate(payload, segment.payload_length, message)) return failure;
  failure.send_status = status_of(message.code);
  failure.vendor_error = static_cast<uint32_t>(message.code.layer) << 16 |
                         static_cast<uint32_t>(message.code.type) << 8 | message.code.code;
  if (!message.has_segment || message.segment.queue != kReadRequestQueue || message.segment.tagged)
    return failure;
  // That of an atomic which is not to be done (RFC 7306): bad operation code or alignment.
  if (message.segment.opcode == Opcode::atomic_request && message.code.layer == 0 && message.code.type == 2)
    failure.send_status = IBV_WC_REM_INV_REQ_ERR;
  const std::lock_guard lock(send_mutex_);
  for (uint32_t i = reads_head_; i != reads_tail_; i++) {
    const uint32_t index = reads_[i % kMaxReadDepth];
    if (send_work(index).read_sequence == message.segment.sequence) failure.send_index = index;
  }
  return failure;
}

}  // namespace rdmakit::iwarp
