// Which memory a payload is in or goes to: scatter lists and STags as pinned pieces.
#include <algorithm>

#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {
namespace {

// An incoming WRITE is checked by DDP, but for access rights, which are RDMAP's (RFC 5040).
TerminateCode write_fault(MemoryTable::Fault fault) {
  switch (fault) {
    case MemoryTable::Fault::other_domain:
      return terminate::ddp_not_associated;
    case MemoryTable::Fault::access:
      return terminate::rdmap_access;
    case MemoryTable::Fault::bounds:
      return terminate::ddp_bounds;
    case MemoryTable::Fault::wrap:
      return terminate::ddp_wrap;
    default:
      return terminate::ddp_invalid_stag;
  }
}

}  // namespace

// The source of a READ and the target of an atomic are checked by RDMAP (RFC 5040).
TerminateCode rdmap_fault(MemoryTable::Fault fault) {
  switch (fault) {
    case MemoryTable::Fault::other_domain:
      return terminate::rdmap_not_associated;
    case MemoryTable::Fault::access:
      return terminate::rdmap_access;
    case MemoryTable::Fault::bounds:
      return terminate::rdmap_bounds;
    case MemoryTable::Fault::wrap:
      return terminate::rdmap_wrap;
    default:
      return terminate::rdmap_invalid_stag;
  }
}

// Whose fault it is that a payload cannot be placed. `fault`: a WRITE's.
Failure QueuePair::no_place(const Placement& placement, uint32_t length, MemoryTable::Fault fault) {
  if (placement.tagged) {
    Segment segment;
    segment.tagged = true;
    segment.last = true;
    segment.opcode = Opcode::write;
    segment.stag = placement.stag;
    segment.offset = placement.address;
    segment.header_length = kTaggedHeaderLength;
    segment.payload_length = length;
    return Failure::blame(write_fault(fault), segment);
  }
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  if (placement.failed_is_receive) {
    failure.receive_status = IBV_WC_LOC_PROT_ERR;
  } else {
    failure.send_status = IBV_WC_LOC_PROT_ERR;
    const std::lock_guard lock(send_mutex_);
    failure.send_index = reads_[reads_head_ % kMaxReadDepth];
  }
  return failure;
}

// Hot path.
MemoryTable::Pin QueuePair::pin_for_peer(uint32_t stag, int access, uint64_t address, uint64_t length,
                                         MemoryTable::Fault& fault) const {
  if ((remote_access_.load(std::memory_order_relaxed) & access) == 0) [[unlikely]] {
    fault = MemoryTable::Fault::access;
    return {};
  }
  return MemoryTable::instance().pin(stag, pd, access, address, length, fault, this);
}

// Pins the memory of a payload's bytes [offset, offset + length).
QueuePair::Result QueuePair::resolve(const Placement& placement, uint64_t offset, uint32_t length,
                                     Target& target) {
  if (placement.tagged) {
    const uint64_t address = placement.address + offset;
    MemoryTable::Fault fault;
    target.pins[0] = pin_for_peer(placement.stag, IBV_ACCESS_REMOTE_WRITE, address, length, fault);
    if (!target.pins[0]) return no_place(placement, length, fault);
    target.pieces[0] = {reinterpret_cast<void*>(address), length};
    target.count = 1;
    return std::nullopt;
  }
  const ibv_pd* domain = placement.failed_is_receive ? receive_pd_ : pd;
  if (gather(domain, placement.sges, placement.sge_count, placement.offset + offset, length,
             IBV_ACCESS_LOCAL_WRITE, target)) {
    return std::nullopt;
  }
  return no_place(placement, length, MemoryTable::Fault::unknown);
}

// False when the list is too short, or a part of it is not memory that allows `access`.
bool QueuePair::gather(const ibv_pd* domain, const ibv_sge* sges, uint32_t count, uint64_t offset,
                       uint32_t length, int access, Target& target) const {
  MemoryTable& table = MemoryTable::instance();
  for (uint32_t i = 0; i < count && length > 0; i++) {
    const ibv_sge& sge = sges[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint32_t part = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
    MemoryTable::Fault fault;
    target.pins[target.count] = table.pin(sge.lkey, domain, access, sge.addr + offset, part, fault);
    if (!target.pins[target.count]) return false;
    target.keys[target.count] = sge.lkey;
    target.pieces[target.count++] = {reinterpret_cast<void*>(sge.addr + offset), part};
    length -= part;
    offset = 0;
  }
  return length == 0;
}
// End of hot path.

}  // namespace rdmakit::iwarp
