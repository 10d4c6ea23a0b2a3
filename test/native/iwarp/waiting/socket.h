// What the kernel knows of a queue pair's socket, for tests that need it full or need to know what has
// arrived.
#pragma once

#include <sys/ioctl.h>
#include <sys/socket.h>

#include "../raw_peer.h"

namespace fixture {

// The socket of the queue pair whose connection ends in `peer`.
inline int socket_of(const RawPeer& peer) {
  sockaddr_in wanted{};
  socklen_t length = sizeof wanted;
  CHECK(getsockname(peer.descriptor(), reinterpret_cast<sockaddr*>(&wanted), &length) == 0);
  for (int fd = 0; fd < 1024; fd++) {
    sockaddr_in address{};
    length = sizeof address;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        address.sin_family == AF_INET && address.sin_port == wanted.sin_port) {
      return fd;
    }
  }
  CHECK(false, "no such socket");
  return -1;
}

inline bool takes_more(int fd) {
  pollfd looked_at{fd, POLLOUT, 0};
  return ::poll(&looked_at, 1, 0) == 1;
}

// Bytes that have arrived and that nobody has read.
inline int arrived_at(int fd) {
  int bytes = 0;
  CHECK(ioctl(fd, FIONREAD, &bytes) == 0);
  return bytes;
}

// Both sockets hold 100 or 200 KiB from now on, whatever tcp_rmem and tcp_wmem say.
inline void narrow(const RawPeer& peer) {
  const int bytes = 32 * 1024;
  CHECK(setsockopt(peer.descriptor(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0);
  CHECK(setsockopt(socket_of(peer), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
}

}  // namespace fixture
