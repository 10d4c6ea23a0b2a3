// Work requests that stay at home, binding a window and invalidating one, and the peer's invalidation.
// They are done in their turn, when all that was posted before them is in FPDUs.
#include <cerrno>

#include "iwarp/queue-pair/queue_pair.h"

namespace rdmakit::iwarp {

constexpr uint32_t kConsumerKey = 0xff;  // the bits of a window's key that are the consumer's

// Hot path of who uses windows.
int QueuePair::check_local(const ibv_send_wr& request) const {
  constexpr unsigned kWindowAccess =
      IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  if (request.opcode != IBV_WR_BIND_MW && request.opcode != IBV_WR_LOCAL_INV) return EOPNOTSUPP;
  if (request.num_sge != 0 || (request.send_flags & IBV_SEND_INLINE)) return EINVAL;
  if (request.opcode == IBV_WR_LOCAL_INV) return 0;
  const ibv_mw* mw = request.bind_mw.mw;
  const ibv_mw_bind_info& info = request.bind_mw.bind_info;
  if (mw == nullptr || info.mr == nullptr || mw->type != IBV_MW_TYPE_2) return EINVAL;
  if ((mw->rkey ^ request.bind_mw.rkey) & ~kConsumerKey) return EINVAL;
  return info.mw_access_flags & ~kWindowAccess ? EOPNOTSUPP : 0;
}

void QueuePair::note_binding(const ibv_send_wr& request, SendWork& work) {
  const ibv_mw_bind_info& info = request.bind_mw.bind_info;
  work.remote_key = request.bind_mw.rkey;
  work.remote_address = info.addr;
  work.operands[0] = info.length;
  work.operands[1] = uint64_t{info.mr->lkey} << 32 | info.mw_access_flags;
  request.bind_mw.mw->rkey = request.bind_mw.rkey;
}

// Nothing that a responder must hold back until its peer has spoken.
bool QueuePair::local_work_next() const {
  const ibv_wr_opcode opcode = send_work(send_next_).opcode;
  return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

QueuePair::Result QueuePair::execute_local(const SendWork& work) {
  MemoryTable& table = MemoryTable::instance();
  bool done;
  if (work.opcode == IBV_WR_LOCAL_INV) {
    done = table.invalidate(work.immediate, this);
  } else {
    bound_windows_ = true;
    done = table.bind({work.remote_key, static_cast<uint32_t>(work.operands[1] >> 32), work.remote_address,
                       work.operands[0], static_cast<int>(work.operands[1] & UINT32_MAX)},
                      pd, this);
  }
  if (done) return std::nullopt;
  Failure failure = Failure::protocol(terminate::local_catastrophic);
  failure.send_status = IBV_WC_MW_BIND_ERR;
  failure.send_index = send_next_;
  return failure;
}

QueuePair::Result QueuePair::invalidate_for_peer(const Segment& segment) {
  if (MemoryTable::instance().invalidate(segment.invalidate, this)) return std::nullopt;
  Failure failure = Failure::blame(terminate::rdmap_cannot_invalidate, segment);
  failure.receive_status = IBV_WC_LOC_ACCESS_ERR;
  return failure;
}
// End of hot path.

}  // namespace rdmakit::iwarp
