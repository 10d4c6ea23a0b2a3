// A queue pair on a shared receive queue.
#include <utility>

#include "iwarp/completion/completion_queue.h"
#include "iwarp/queue-pair/queue_pair.h"
#include "iwarp/queue-pair/shared_receive_queue.h"

namespace rdmakit::iwarp {

// Hot path of who shares a receive queue.
QueuePair::Receive QueuePair::next_shared_receive() {
  if (taken_ == nullptr) taken_ = shared_->take();
  if (taken_ == nullptr) return {};
  return {taken_, shared_->sges(taken_)};
}

uint64_t QueuePair::finish_shared_receive() {
  const uint64_t wr_id = taken_->wr_id;
  shared_->release(std::exchange(taken_, nullptr));
  return wr_id;
}
// End of hot path.

// Only what a message had taken is this queue pair's; the rest belongs to the others.
void QueuePair::flush_shared_receive(const Failure& failure) {
  if (taken_ == nullptr) return;
  ibv_wc completion{};
  completion.wr_id = finish_shared_receive();
  completion.status = failure.receive_status;
  completion.opcode = IBV_WC_RECV;
  completion.qp_num = qp_num;
  receive_queue()->push(completion, true, &receive_polled_, 0);
}

}  // namespace rdmakit::iwarp
