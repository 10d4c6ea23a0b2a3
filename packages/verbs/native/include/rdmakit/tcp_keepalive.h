// How soon a host that is gone is noticed at a TCP connection over which nothing goes (tcp(7)). Linux by
// itself asks after two hours.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace rdmakit {

inline constexpr int kHostSilenceSeconds = 20;

// Half of `seconds`, 2 or more, go by before the peer's host is asked, and five questions into the rest: what
// answers none of them is ETIMEDOUT.
inline void keep_alive(int socket, int seconds = kHostSilenceSeconds) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  const int rest = seconds - seconds / 2;
  const int interval = std::max(rest / 5, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, seconds / 2);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(IPPROTO_TCP, TCP_KEEPCNT, rest / interval);
}

}  // namespace rdmakit
