#include "ring/receiving/reader.h"

namespace rdmakit::ring {

// --- hot path ------------------------------------------------------------------------------------
// No allocation, no lock, no system call but the post itself.

SendResult Reader::read(const MrRef& region, uint64_t offset, uint64_t remote_address, uint32_t remote_key,
                        uint32_t length, uint32_t tag) {
  if (length == 0 || length > kMaxRead || offset > region->length || length > region->length - offset)
    return SendResult::too_long;
  uint32_t index = 0;
  while (slots_[index].state.load(std::memory_order_acquire) != State::free)
    if (++index == slots_.size()) return SendResult::full;
  Slot& slot = slots_[index];
  slot.region = region;
  slot.tag = tag;
  ibv_sge element = {reinterpret_cast<uint64_t>(region->addr) + offset, length, region->lkey};
  ibv_send_wr request = {};
  request.wr_id = WorkId{Work::read, slot_, generation_, index, 0}.encode();
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &element;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = remote_address;
  request.wr.rdma.rkey = remote_key;
  // Before the post: the completion may come at once.
  slot.state.store(State::posted, std::memory_order_release);
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(qp_.get(), &request, &bad) != 0) {
    // A driver that names no request has it (siw): the slot is the poller's, as if it had been posted.
    if (bad != nullptr) {
      slot.region = {};
      slot.state.store(State::free, std::memory_order_relaxed);
    }
    return SendResult::failed;
  }
  counters.doorbells.add(1);
  counters.work_requests.add(1);
  counters.signaled_requests.add(1);
  return SendResult::done;
}

void Reader::complete(uint32_t index, ibv_wc_status status) {
  if (index >= slots_.size()) return;
  Slot& slot = slots_[index];
  if (slot.state.load(std::memory_order_acquire) != State::posted) return;
  slot.status = status;
  // The application has a reference of its own, unless it released the memory while it was being filled.
  slot.region = {};
  slot.state.store(State::done, std::memory_order_relaxed);
  order_[completed_++ % order_.size()] = index;
}

void Reader::next(Descriptor& descriptor) {
  Slot& slot = slots_[order_[told_++ % order_.size()]];
  descriptor = {0, slot.status, 0, static_cast<uint32_t>(Event::read), slot.tag, 0, 0, 0};
  slot.state.store(State::free, std::memory_order_release);
}
// --- end of the hot path -------------------------------------------------------------------------

bool Reader::outstanding() const {
  for (const Slot& slot : slots_)
    if (slot.state.load(std::memory_order_relaxed) == State::posted) return true;
  return false;
}

}  // namespace rdmakit::ring
