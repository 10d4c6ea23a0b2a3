#include "shm/queue-pair/shared_receives.h"

#include <cerrno>

namespace rdmakit::shm {

std::unique_ptr<SharedReceives> SharedReceives::open(SharedShape shape, int board_fd, int claims_fd) {
  std::unique_ptr<SharedReceives> made(new SharedReceives);
  errno = EPROTO;
  if (!shape.sane()) return nullptr;
  made->shape_ = shape;
  made->board_mapping_ = SharedMapping::open(board_fd, shape.board_size(), Sharing::read_only);
  if (made->board_mapping_ == nullptr) return nullptr;
  made->claims_mapping_ = SharedMapping::open(claims_fd, shape.claims_size(), Sharing::writable);
  if (made->claims_mapping_ == nullptr) return nullptr;
  uint8_t* board = made->board_mapping_->data();
  uint8_t* claims = made->claims_mapping_->data();
  made->board_ = reinterpret_cast<const BoardHeader*>(board);
  made->tickets_ = reinterpret_cast<const std::atomic<uint64_t>*>(board + shape.tickets_at());
  made->entries_ = board + shape.entries_at();
  made->stride_ = shape.entry_stride();
  made->claims_ = reinterpret_cast<ClaimsHeader*>(claims);
  made->claimed_ = reinterpret_cast<std::atomic<uint64_t>*>(claims + shape.claims_at());
  return made;
}

// Hot path: no allocation, no system call. One round over the ring at the most.
uint32_t SharedReceives::take(uint32_t queue_pair) {
  const uint32_t mask = shape_.entries - 1;
  const uint32_t hint = claims_->next.load(std::memory_order_relaxed);
  const uint32_t posted = board_->posted.load(std::memory_order_seq_cst);
  // Any peer may have written the hint.
  uint32_t ticket = posted - hint > shape_.entries ? posted - shape_.entries : hint;
  for (; ticket != posted; ticket++) {
    const uint64_t word = tickets_[ticket & mask].load(std::memory_order_acquire);
    const uint32_t index = low_of(word);
    if (ticket_of(word) != ticket || index > mask) continue;
    uint64_t claim = with_ticket(ticket, kPosted);
    if (!claimed_[index].compare_exchange_strong(claim, with_ticket(ticket, queue_pair),
                                                 std::memory_order_seq_cst)) {
      continue;
    }
    // The second of two leaves the hint slightly too low; the next one then skips the taken entries.
    uint32_t before = hint;
    claims_->next.compare_exchange_strong(before, ticket + 1, std::memory_order_relaxed);
    const uint32_t limit = board_->limit.load(std::memory_order_seq_cst);
    below_limit_ = posted - (ticket + 1) < limit;
    return index;
  }
  return kNone;
}
// End of hot path.

}  // namespace rdmakit::shm
