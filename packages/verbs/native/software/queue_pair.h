// The common part of the software providers' ibv_qp: validation of a program's requests, and the result of
// queries. The queues and the execution of requests are each provider's own.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "software/limits.h"

namespace rdmakit::software {

class QueuePairBase : public ibv_qp {
 public:
  enum class State : uint8_t { reset, init, connected, error };

 protected:
  // 0, or what these attributes are refused for.
  static int check_attributes(const ibv_qp_init_attr& attributes);
  // The granted sizes, if not refused: work queues have 2^n entries.
  static ibv_qp_cap granted(const ibv_qp_init_attr& attributes);

  QueuePairBase(ibv_pd* pd, const ibv_qp_init_attr& attributes, const ibv_qp_cap& cap, uint32_t number);

  static bool is_atomic(ibv_wr_opcode opcode) {
    return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
  }
  static ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
    switch (opcode) {
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
      case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
      case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
      case IBV_WR_BIND_MW:
        return IBV_WC_BIND_MW;
      case IBV_WR_LOCAL_INV:
        return IBV_WC_LOCAL_INV;
      default:
        return IBV_WC_SEND;
    }
  }

  // Under the provider's locks.
  void enter(State state, ibv_qp_state told) {
    ibv_qp::state = told;
    state_.store(state);
  }
  // The query of a queue pair; the provider adds the state of a connected one.
  State query_base(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const;

  // Hot path. 0 and the length, or what the request is refused for. Binds and local invalidations are the
  // provider's: EOPNOTSUPP.
  int check_transfer(const ibv_send_wr& request, uint64_t& length) const {
    switch (request.opcode) {
      case IBV_WR_SEND:
      case IBV_WR_SEND_WITH_IMM:
      case IBV_WR_SEND_WITH_INV:
      case IBV_WR_RDMA_WRITE:
      case IBV_WR_RDMA_WRITE_WITH_IMM:
        break;
      case IBV_WR_RDMA_READ:
      case IBV_WR_ATOMIC_CMP_AND_SWP:
      case IBV_WR_ATOMIC_FETCH_AND_ADD:
        if (request.send_flags & IBV_SEND_INLINE) return EINVAL;
        break;
      default:
        return EOPNOTSUPP;
    }
    if (request.num_sge < 0 || static_cast<uint32_t>(request.num_sge) > cap_.max_send_sge) return EINVAL;
    length = 0;
    for (int i = 0; i < request.num_sge; i++) length += request.sg_list[i].length;
    if (length > kMaxMessage) return EINVAL;
    if ((request.send_flags & IBV_SEND_INLINE) && length > cap_.max_inline_data) return EINVAL;
    if (is_atomic(request.opcode) && length != sizeof(uint64_t)) return EINVAL;
    return 0;
  }

  const ibv_qp_cap cap_;
  const bool signal_all_;
  std::atomic<State> state_{State::reset};
};

}  // namespace rdmakit::software
