// Moving bytes between this process and memory of the peer.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "rdmakit/handle.h"
#include "shm/mapping/layout.h"
#include "shm/setup/peer.h"

namespace rdmakit::shm {

// memcpy whose last bytes (eight, where they are aligned) are stored last, and atomically: who polls the
// end of a message sees all of it, as with a network card that writes in order. memcpy alone promises
// no order.
inline void copy_end_last(uint8_t* to, const uint8_t* from, size_t length) {
  const auto store = [&]<typename Word>(Word word) {
    std::memcpy(to, from, length - sizeof word);
    std::memcpy(&word, from + length - sizeof word, sizeof word);
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(to + length - sizeof word))
        .store(word, std::memory_order_release);
  };
  const uintptr_t end = reinterpret_cast<uintptr_t>(to) + length;
  if (length >= 8 && end % 8 == 0) {
    store(uint64_t{});
  } else if (length >= 4 && end % 4 == 0) {
    store(uint32_t{});
  } else {
    store(uint8_t{});
  }
}

// Walks through a scatter/gather list, whose bytes may be lent in part.
class SgeWalk {
 public:
  SgeWalk(const ibv_sge* sges, uint32_t count, const LentBytes* lent = nullptr)
      : at_(sges), end_(sges + count), lent_(lent) {}

  // The next contiguous piece of at most `most` > 0 bytes; its length is 0 only at the end of the list.
  uint8_t* next(uint64_t most, uint64_t& length) {
    while (at_ != end_ && offset_ == at_->length) {
      at_++;
      offset_ = 0;
    }
    if (at_ == end_) {
      length = 0;
      return nullptr;
    }
    uint8_t* piece = reinterpret_cast<uint8_t*>(at_->addr) + offset_;
    const uint64_t left = at_->length - offset_;
    length = left < most ? left : most;
    if (lent_ != nullptr) piece = lent_->find(piece, length);
    offset_ += length;
    return piece;
  }

 private:
  const ibv_sge* at_;
  const ibv_sge* const end_;
  const LentBytes* const lent_;
  uint64_t offset_ = 0;
};

// 0, or why this process may not copy to and from memory of process `pid` that is not shared
// (process_vm_readv(2)): ESRCH in another PID namespace or of another user, EPERM by Yama, ENOSYS or EPERM in
// a container whose seccomp filter has no such call.
int reach_of(pid_t pid);

// The next piece.length bytes of `local` to or from `piece` of process `pid`. 0 or an errno value.
int copy_to_peer(SgeWalk& local, const RemotePiece& piece, pid_t pid);
int copy_from_peer(SgeWalk& local, const RemotePiece& piece, pid_t pid);

}  // namespace rdmakit::shm
