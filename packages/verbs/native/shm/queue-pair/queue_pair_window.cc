// Send work requests about memory windows. Under send_lock_; hot path: no allocation, no system call
// unless the peer is in the middle of a copy.
#include "shm/memory/protection_domain.h"
#include "shm/queue-pair/queue_pair.h"
#include "shm/queue-pair/queue_pair_request.h"

namespace rdmakit::shm {

QueuePair::Outcome QueuePair::bind(const Request& request) {
  const bool bound = domain()->bind(static_cast<uint32_t>(request.compare_add), request.remote_key,
                                    static_cast<uint32_t>(request.swap), request.remote_address,
                                    request.length, request.immediate, qp_num, hazard_);
  return bound ? Outcome{} : Outcome::failed(IBV_WC_MW_BIND_ERR);
}

// The window's only user is our peer, so its one hazard shows when the memory is no longer in use. That is
// nearly always the case at once. Otherwise the request waits in the queue with all behind it, as it would
// for a receive, but at most for kPeerPatience.
QueuePair::Outcome QueuePair::invalidate(const Request& request) {
  const uint32_t key = request.immediate;
  if (revoking_ != key || key == 0) {  // 0 is no key, and while there is nothing to wait for
    if (!domain()->invalidate(key, qp_num)) return Outcome::failed(IBV_WC_MW_BIND_ERR);
    for (int i = 0; i < kHazardSpins; i++) {
      if (!hazard_->names(key)) return Outcome{};
    }
    revoking_ = key;
    revoking_until_ = std::chrono::steady_clock::now() + kPeerPatience;
  }
  const bool over = !hazard_->names(key) || link_->peer_over();
  if (!over && std::chrono::steady_clock::now() < revoking_until_) {
    tick_soon();
    return Outcome::later();
  }
  revoking_ = 0;
  if (!over) hazard_->give_up();
  return over ? Outcome{} : Outcome::failed(IBV_WC_LOC_QP_OP_ERR, ETIMEDOUT);
}

// The receiver ends the window when it takes the message. This side must not be at it then.
QueuePair::Outcome QueuePair::send_and_invalidate(const Request& request) {
  if (!has_receive()) return Outcome::later();
  if (held_ == request.immediate) let_go();
  if (peer_->has_window(request.immediate)) return send(request);
  if (peer_->header().closed.load(std::memory_order_relaxed) != 0) return Outcome::later();
  publish(peer_->slot(position_), SlotKind::wrong_key, request);
  return Outcome::invalid(Blame::nothing);  // the peer's completion tells it
}

}  // namespace rdmakit::shm
