// What ibv_post_send(3), ibv_post_recv(3) and ibv_post_srq_recv(3) returned, as an errno value.
#pragma once

#include <cerrno>
#include <cstdlib>

namespace rdmakit {

// libsiw returns errno values negated; and -1, with errno, where its doorbell fails, which is a write(2). It
// names no request then, and has taken them all; that it says how they end is not certain.
inline int post_error(int result) { return result == -1 ? errno : std::abs(result); }

// `refused`: the request that was named. Where the queue is full behind the first requests of a chain, libsiw
// names one and then returns what its doorbell says of those before.
inline int post_error(int result, const void* refused) {
  const int error = post_error(result);
  return error == 0 && refused != nullptr ? ENOMEM : error;
}

}  // namespace rdmakit
