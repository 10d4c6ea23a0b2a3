#include "shm/queue-pair/copy.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace rdmakit::shm {
namespace {

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long, unsigned long);

// Memory that is not shared: one system call for each piece of the local list.
int through_kernel(Transfer transfer, SgeWalk& local, const RemotePiece& piece, pid_t pid) {
  if (pid <= 0) return ESRCH;  // Peer::pid()
  uint64_t done = 0;
  while (done < piece.length) {
    uint64_t length;
    uint8_t* at = local.next(piece.length - done, length);
    while (length > 0) {
      const iovec here{at, length};
      const iovec there{reinterpret_cast<void*>(piece.address + done), length};
      const ssize_t moved = transfer(pid, &here, 1, &there, 1, 0);
      if (moved <= 0) return moved == 0 ? EFAULT : errno;
      at += moved;
      length -= static_cast<uint64_t>(moved);
      done += static_cast<uint64_t>(moved);
    }
  }
  return 0;
}

}  // namespace

int reach_of(pid_t pid) {
  if (pid <= 0) return ESRCH;
  if (pid == getpid()) return 0;
  // There is no memory at address 0: a process that may look there gets that error.
  uint8_t byte;
  const iovec here{&byte, 1};
  const iovec there{nullptr, 1};
  return process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT ? 0 : errno;
}

// Hot path.
int copy_to_peer(SgeWalk& local, const RemotePiece& piece, pid_t pid) {
  if (piece.mapped == nullptr) [[unlikely]]
    return through_kernel(process_vm_writev, local, piece, pid);
  uint8_t* to = piece.mapped;
  uint64_t left = piece.length;
  while (left > 0) {
    uint64_t length;
    const uint8_t* from = local.next(left, length);
    if (length == left) {
      copy_end_last(to, from, length);
    } else {
      std::memcpy(to, from, length);
    }
    to += length;
    left -= length;
  }
  return 0;
}

int copy_from_peer(SgeWalk& local, const RemotePiece& piece, pid_t pid) {
  if (piece.mapped == nullptr) [[unlikely]]
    return through_kernel(process_vm_readv, local, piece, pid);
  const uint8_t* from = piece.mapped;
  uint64_t left = piece.length;
  while (left > 0) {
    uint64_t length;
    uint8_t* to = local.next(left, length);
    std::memcpy(to, from, length);
    from += length;
    left -= length;
  }
  return 0;
}
// End of hot path.

}  // namespace rdmakit::shm
