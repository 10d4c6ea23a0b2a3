// Compare-and-swap and fetch-and-add (RFC 7306 §5): requests out and in, and their responses.
//
// A peer's atomic waits its turn among the READs and is done when its response is built, once. It is done
// by the processor's own atomic instructions, so it is atomic with respect to every other connection and
// provider of the process, and to the application's atomics on the same eight bytes.
#include <atomic>
#include <bit>
#include <cstring>

#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {
namespace {

uint64_t execute(const AtomicRequest& request) {
  std::atomic_ref<uint64_t> target(*reinterpret_cast<uint64_t*>(request.offset));
  uint64_t original = target.load();
  while (!target.compare_exchange_weak(original, atomic_result(request, original))) {
  }
  return original;
}

}  // namespace

// Hot path of who uses atomics.
bool QueuePair::append_atomic_request(SendWork& work) {
  if (!batch_.fits(0, kAtomicRequestLength)) return false;
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::atomic_request;
  segment.queue = kReadRequestQueue;
  segment.sequence = read_request_sequence_++;
  work.read_sequence = segment.sequence;
  AtomicRequest request;
  request.identifier = segment.sequence;
  request.stag = work.remote_key;
  request.offset = work.remote_address;
  if (work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.add_swap = work.operands[0];
  } else {
    request.operation = AtomicOperation::compare_swap;
    request.compare = work.operands[0];
    request.add_swap = work.operands[1];
    request.add_swap_mask = request.compare_mask = UINT64_MAX;
  }
  const uint32_t ulpdu = kUntaggedHeaderLength + kAtomicRequestLength;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kUntaggedHeaderLength), segment);
  build_atomic_request(batch_.write(kAtomicRequestLength), request);
  built_position_ += batch_.end_fpdu();
  reads_[reads_tail_++ % kMaxReadDepth] = send_next_;
  return true;
}

QueuePair::Result QueuePair::append_atomic_response(const AtomicRequest& request, bool& fits) {
  fits = batch_.fits(0, kAtomicResponseLength);
  if (!fits) return std::nullopt;
  AtomicResponse response{request.identifier, 0};
  {
    MemoryTable::Fault fault;
    const MemoryTable::Pin pin =
        pin_for_peer(request.stag, IBV_ACCESS_REMOTE_ATOMIC, request.offset, sizeof(uint64_t), fault);
    if (!pin) return Failure::protocol(terminate::rdmap_invalid_stag);  // deregistered meanwhile
    response.original = execute(request);
  }
  Segment segment;
  segment.last = true;
  segment.opcode = Opcode::atomic_response;
  segment.queue = kAtomicResponseQueue;
  segment.sequence = atomic_response_sequence_++;
  const uint32_t ulpdu = kUntaggedHeaderLength + kAtomicResponseLength;
  batch_.begin_fpdu(ulpdu, crc_);
  build_segment(batch_.write(kUntaggedHeaderLength), segment);
  build_atomic_response(batch_.write(kAtomicResponseLength), response);
  built_position_ += batch_.end_fpdu();
  response_built();
  return std::nullopt;
}

QueuePair::Result QueuePair::finish_atomic_request(const Segment& segment, const uint8_t* payload) {
  AtomicRequest request;
  if (segment.sequence != expected_read_request_) return Failure::blame(terminate::ddp_sequence, segment);
  expected_read_request_++;
  if (!parse_atomic_request(payload, request)) return Failure::blame(terminate::rdmap_opcode, segment);
  if (request.offset % sizeof(uint64_t) != 0) return Failure::blame(terminate::rdmap_catastrophic, segment);
  {
    MemoryTable::Fault fault;
    const MemoryTable::Pin pin =
        pin_for_peer(request.stag, IBV_ACCESS_REMOTE_ATOMIC, request.offset, sizeof(uint64_t), fault);
    if (!pin) return Failure::blame(rdmap_fault(fault), segment);
  }
  if (!queue_response({true, {}, request})) return Failure::blame(terminate::ddp_no_buffer, segment);
  return std::nullopt;
}

QueuePair::Result QueuePair::finish_atomic_response(const Segment& segment, const uint8_t* payload) {
  if (segment.sequence != expected_atomic_response_) return Failure::blame(terminate::ddp_sequence, segment);
  expected_atomic_response_++;
  const AtomicResponse response = parse_atomic_response(payload);
  const std::lock_guard lock(send_mutex_);
  if (reads_head_ == reads_tail_) return Failure::blame(terminate::rdmap_opcode, segment);
  const uint32_t index = reads_[reads_head_ % kMaxReadDepth];
  SendWork& work = send_work(index);
  // Responses come in the order of the requests, READs and atomics together.
  if (work.opcode == IBV_WR_RDMA_READ || response.identifier != work.read_sequence) {
    return Failure::blame(terminate::rdmap_opcode, segment);
  }
  Target target;
  if (!gather(pd, send_sges(index), work.sge_count, 0, work.length, IBV_ACCESS_LOCAL_WRITE, target)) {
    Failure failure = Failure::protocol(terminate::local_catastrophic);
    failure.send_status = IBV_WC_LOC_PROT_ERR;
    failure.send_index = index;
    return failure;
  }
  const auto original = std::bit_cast<std::array<uint8_t, sizeof(uint64_t)>>(response.original);
  const uint8_t* from = original.data();
  for (uint32_t i = 0; i < target.count; i++) {
    std::memcpy(target.pieces[i].iov_base, from, target.pieces[i].iov_len);
    from += target.pieces[i].iov_len;
  }
  response_complete(work);
  return std::nullopt;
}
// End of hot path.

}  // namespace rdmakit::iwarp
