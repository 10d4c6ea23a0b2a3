#include "software/queue_pair.h"

#include <algorithm>
#include <bit>

namespace rdmakit::software {

int QueuePairBase::check_attributes(const ibv_qp_init_attr& attributes) {
  const ibv_qp_cap& cap = attributes.cap;
  if (attributes.qp_type != IBV_QPT_RC) return EOPNOTSUPP;
  if (attributes.send_cq == nullptr || attributes.recv_cq == nullptr) return EINVAL;
  const bool too_many = cap.max_send_wr > kMaxWorkRequests || cap.max_recv_wr > kMaxWorkRequests ||
                        cap.max_send_sge > kMaxSge || cap.max_recv_sge > kMaxSge ||
                        cap.max_inline_data > kMaxInline;
  return too_many ? EINVAL : 0;
}

ibv_qp_cap QueuePairBase::granted(const ibv_qp_init_attr& attributes) {
  const auto ring_size = [](uint32_t entries) { return std::bit_ceil(std::max(entries, 1u)); };
  ibv_qp_cap cap = attributes.cap;
  cap.max_send_wr = ring_size(cap.max_send_wr);
  cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  // With a shared receive queue it has none of its own.
  cap.max_recv_wr = attributes.srq == nullptr ? ring_size(cap.max_recv_wr) : 0;
  cap.max_recv_sge = attributes.srq == nullptr ? std::max(cap.max_recv_sge, 1u) : 0;
  return cap;
}

QueuePairBase::QueuePairBase(ibv_pd* pd, const ibv_qp_init_attr& attributes, const ibv_qp_cap& cap,
                             uint32_t number)
    : ibv_qp{}, cap_(cap), signal_all_(attributes.sq_sig_all != 0) {
  context = pd->context;
  qp_context = attributes.qp_context;
  this->pd = pd;
  send_cq = attributes.send_cq;
  recv_cq = attributes.recv_cq;
  srq = attributes.srq;
  qp_type = attributes.qp_type;
  qp_num = number;
  ibv_qp::state = IBV_QPS_RESET;
}

QueuePairBase::State QueuePairBase::query_base(ibv_qp_attr* attributes, ibv_qp_init_attr* init) const {
  const State state = state_.load();
  *attributes = ibv_qp_attr{};
  switch (state) {
    case State::reset:
      attributes->qp_state = IBV_QPS_RESET;
      break;
    case State::init:
      attributes->qp_state = IBV_QPS_INIT;
      break;
    case State::connected:
      attributes->qp_state = IBV_QPS_RTS;
      break;
    case State::error:
      attributes->qp_state = IBV_QPS_ERR;
      break;
  }
  attributes->cur_qp_state = attributes->qp_state;
  attributes->path_mtu = IBV_MTU_4096;
  attributes->port_num = 1;
  attributes->cap = cap_;
  if (init == nullptr) return state;
  *init = ibv_qp_init_attr{};
  init->qp_context = qp_context;
  init->send_cq = send_cq;
  init->recv_cq = recv_cq;
  init->srq = srq;
  init->cap = cap_;
  init->qp_type = qp_type;
  init->sq_sig_all = signal_all_;
  return state;
}

}  // namespace rdmakit::software
