// One send work request on its way, or waiting for its turn, and how it went. Only for queue_pair*.cc.
#pragma once

#include "shm/queue-pair/queue_pair.h"

namespace rdmakit::shm {

// A BIND_MW has the keys of its window and region in compare_add and swap, for either can be gone when its
// turn comes; what the window is to be in remote_address, length and remote_key, its access flags in
// immediate.
struct QueuePair::Request {
  const ibv_sge* sges = nullptr;
  uint64_t length = 0;
  uint64_t remote_address = 0;
  uint64_t compare_add = 0;
  uint64_t swap = 0;
  uint32_t remote_key = 0;
  uint32_t sge_count = 0;
  uint32_t immediate = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool inlined = false;
  bool solicited = false;

  Request() = default;
  Request(const ibv_send_wr& from, uint32_t bytes)
      : sges(from.sg_list),
        length(bytes),
        sge_count(static_cast<uint32_t>(from.num_sge)),
        immediate(from.imm_data),
        opcode(from.opcode),
        inlined(from.send_flags & IBV_SEND_INLINE),
        solicited(from.send_flags & IBV_SEND_SOLICITED) {
    if (opcode < IBV_WR_ATOMIC_CMP_AND_SWP) [[likely]] {
      remote_address = from.wr.rdma.remote_addr;
      remote_key = from.wr.rdma.rkey;
    } else if (opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD) {
      remote_address = from.wr.atomic.remote_addr;
      remote_key = from.wr.atomic.rkey;
      compare_add = from.wr.atomic.compare_add;
      swap = from.wr.atomic.swap;
    } else if (opcode == IBV_WR_BIND_MW) {
      compare_add = from.bind_mw.mw->rkey;
      swap = from.bind_mw.bind_info.mr->lkey;
      remote_address = from.bind_mw.bind_info.addr;
      remote_key = from.bind_mw.rkey;
      length = from.bind_mw.bind_info.length;
      immediate = from.bind_mw.bind_info.mw_access_flags;
      sge_count = 0;
    } else if (opcode == IBV_WR_LOCAL_INV) {
      sge_count = 0;
    }
  }
};

struct QueuePair::SendWork {
  uint64_t wr_id;
  unsigned flags;
  Request request;
};

struct QueuePair::Outcome {
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t vendor_error = 0;
  bool waits = false;            // nothing was done: there is no receive, or no mapping yet
  Blame blame = Blame::nothing;  // of this side, as its peer's asynchronous event tells it
  bool lost = false;             // not an error of this side: the peer is dead

  static Outcome failed(ibv_wc_status status, uint32_t vendor_error = 0) {
    return {status, vendor_error, false, Blame::nothing};
  }
  // A copy into the peer's memory or out of it failed. Who dies gives up memory before sockets, so that this
  // may be the first that is seen of it (process_vm_readv(2), ESRCH).
  static Outcome not_copied(int error, pid_t pid) {
    if (error == ESRCH && pid > 0) return {IBV_WC_RETRY_EXC_ERR, ESRCH, false, Blame::nothing, true};
    return failed(IBV_WC_REM_OP_ERR, static_cast<uint32_t>(error));
  }
  static Outcome refused() { return {IBV_WC_REM_ACCESS_ERR, 0, false, Blame::access}; }
  static Outcome invalid(Blame blame) { return {IBV_WC_REM_INV_REQ_ERR, 0, false, blame}; }
  static Outcome later() { return {IBV_WC_SUCCESS, 0, true, Blame::nothing}; }
};

}  // namespace rdmakit::shm
