#include "ibverbs/iwarp_states.h"

#include <cerrno>
#include <map>
#include <mutex>

#include "ibverbs/result.h"

namespace rdmakit::ibverbs {
namespace {

// Not ibv_qp::state: a query overwrites that with the driver's answer and rdma_disconnect(3) with SQD, each
// on its own thread.
struct KnownStates {
  std::mutex mutex;
  std::map<ibv_qp*, ibv_qp_state> states;
};

KnownStates& known_states() {
  static auto* all = new KnownStates;  // lives until exit: threads use it
  return *all;
}

bool is_iwarp(const ibv_qp* qp) { return qp->context->device->transport_type == IBV_TRANSPORT_IWARP; }

void note(ibv_qp* qp, ibv_qp_state state) {
  const std::lock_guard lock(known_states().mutex);
  const auto found = known_states().states.find(qp);
  if (found == known_states().states.end()) return;
  // From ERR there is RESET only (ibv_modify_qp(3)): what another thread did before came here late.
  if (found->second == IBV_QPS_ERR && state != IBV_QPS_RESET) return;
  found->second = state;
}

}  // namespace

void note_created(ibv_qp* qp) {
  if (!is_iwarp(qp)) return;
  const std::lock_guard lock(known_states().mutex);
  known_states().states[qp] = qp->state;
}

void note_destroyed(ibv_qp* qp) {
  const std::lock_guard lock(known_states().mutex);
  known_states().states.erase(qp);
}

int modify_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
  const ibv_qp_state wanted = attributes->qp_state;
  const bool changes = (mask & IBV_QP_STATE) != 0 && is_iwarp(qp);
  if (changes && (wanted == IBV_QPS_RTR || wanted == IBV_QPS_RTS)) return EOPNOTSUPP;
  const int error = errno_of(lib.modify_qp(qp, attributes, mask));
  if (error == 0 && changes) note(qp, wanted);
  return error;
}

int query_qp(const Libraries& lib, ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* init) {
  const int error = errno_of(lib.query_qp(qp, attributes, mask, init));
  // siw_query_qp of Linux 6.1 leaves the state zero, which reads as RESET.
  if (error != 0 || attributes->qp_state != IBV_QPS_RESET || !is_iwarp(qp)) return error;
  const std::lock_guard lock(known_states().mutex);
  if (const auto found = known_states().states.find(qp); found != known_states().states.end()) {
    attributes->qp_state = found->second;
  }
  return 0;
}

void note_established(ibv_qp* qp) { note(qp, IBV_QPS_RTS); }

void note_disconnected(ibv_qp* qp) { note(qp, IBV_QPS_ERR); }

}  // namespace rdmakit::ibverbs
