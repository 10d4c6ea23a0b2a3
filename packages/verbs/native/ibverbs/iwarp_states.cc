#include "ibverbs/iwarp_states.h"

#include <cerrno>

#include "ibverbs/result.h"

namespace rdmakit::ibverbs {
namespace {

bool is_iwarp(const ibv_qp* qp) { return qp->context->device->transport_type == IBV_TRANSPORT_IWARP; }

}  // namespace

int modify_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const ibv_qp_state wanted = attributes->qp_state;
  if ((mask & IBV_QP_STATE) != 0 && (wanted == IBV_QPS_RTR || wanted == IBV_QPS_RTS) && is_iwarp(qp)) {
    return EOPNOTSUPP;
  }
  return errno_of(lib.modify_qp(qp, attributes, mask));
}

int query_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) {
  // Where the last transition through libibverbs went; the query overwrites it with the driver's answer.
  const ibv_qp_state known = qp->state;
  const int error = errno_of(lib.query_qp(qp, attributes, mask, init));
  // siw_query_qp of Linux 6.1 leaves the state zero, which reads as RESET.
  if (error == 0 && attributes->qp_state == IBV_QPS_RESET && is_iwarp(qp)) {
    qp->state = known;
    attributes->qp_state = known;
  }
  return error;
}

void note_established(ibv_qp* qp) {
  if (is_iwarp(qp)) qp->state = IBV_QPS_RTS;
}

void note_disconnected(ibv_qp* qp) {
  if (is_iwarp(qp)) qp->state = IBV_QPS_ERR;
}

}  // namespace rdmakit::ibverbs
