// What a failed accept(2) says of its listener.
#pragma once

#include <cerrno>

namespace rdmakit {

enum class AcceptFailure {
  // No connection waits.
  none_waiting,
  // The connection that waited was over, or a firewall refused it: Linux passes its errors on, and the next
  // one may be good (accept(2), "Error handling").
  connection_over,
  // There is no descriptor or no memory for it, or the listener itself is broken. The listener stays
  // readable: who looks again at once spins.
  no_room,
};

inline AcceptFailure accept_failure(int error) {
  switch (error) {
    case EAGAIN:
      return AcceptFailure::none_waiting;
    case EINTR:
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
    case ENOPROTOOPT:
    case EOPNOTSUPP:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENONET:
    case ETIMEDOUT:
      return AcceptFailure::connection_over;
    default:
      return AcceptFailure::no_room;
  }
}

}  // namespace rdmakit
