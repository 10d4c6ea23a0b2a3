// What a set of epoll(7) watches.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

namespace rdmakit {

// EPOLL_CTL_ADD or EPOLL_CTL_MOD: the events of `fd`, which come with `data`. An errno, which is in errno
// too.
inline int epoll_watch(int epoll, int operation, int fd, uint32_t events, epoll_data_t data) {
  epoll_event event{events, data};
  return epoll_ctl(epoll, operation, fd, &event) == 0 ? 0 : errno;
}

}  // namespace rdmakit
