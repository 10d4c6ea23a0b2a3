// The peer's ring, and how to notify its owner.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstring>

#include "rdmakit/handle.h"
#include "ring/counters.h"
#include "ring/wire/windows.h"

namespace rdmakit::ring {

// From the handshake.
struct PeerRing {
  uint64_t address = 0;
  uint32_t key = 0;
  Windows windows;
  uint32_t receive_depth = 0;
  bool write_with_immediate = false;
};

// --- hot path ------------------------------------------------------------------------------------
// Posts a notification that comes with no data. `staged` is 4 bytes of registered memory that stay as they
// are until it has completed. 0 or errno.
inline int post_word(const QpRef& qp, const PeerRing& peer, uint32_t word, void* staged, uint32_t local_key,
                     uint64_t id, PostCounters& counters) {
  ibv_sge element = {reinterpret_cast<uint64_t>(staged), sizeof word, local_key};
  ibv_send_wr request = {};
  request.wr_id = id;
  request.send_flags = IBV_SEND_SIGNALED;
  if (peer.write_with_immediate) {
    // Nothing is written, so the address is not used; it is a valid one anyway.
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htonl(word);
    request.wr.rdma.remote_addr = peer.address;
    request.wr.rdma.rkey = peer.key;
  } else {
    std::memcpy(staged, &word, sizeof word);
    request.opcode = IBV_WR_SEND;
    request.sg_list = &element;
    request.num_sge = 1;
    if (qp.handle()->max_inline_data >= sizeof word) {
      request.send_flags |= IBV_SEND_INLINE;
      counters.inline_requests.add(1);
    }
  }
  counters.doorbells.add(1);
  counters.work_requests.add(1);
  counters.signaled_requests.add(1);
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &request, &bad);
}
// --- end of the hot path -------------------------------------------------------------------------

}  // namespace rdmakit::ring
