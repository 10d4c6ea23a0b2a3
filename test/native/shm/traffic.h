// Requests and waiting that the shm tests have in common.
#pragma once

#include <functional>

#include "fixture.h"

namespace fixture {

// Where a region is, to whoever was told.
struct Remote {
  uint64_t address;
  uint32_t key;
};
inline Remote remote(const Memory& memory) { return {memory.address(), memory.mr->rkey}; }

inline Send write_to(Remote to, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  return {.wr_id = wr_id,
          .opcode = IBV_WR_RDMA_WRITE,
          .flags = flags,
          .remote_address = to.address + offset,
          .remote_key = to.key};
}
inline Send read_from(Remote from, size_t offset, uint64_t wr_id, int flags = IBV_SEND_SIGNALED) {
  Send send = write_to(from, offset, wr_id, flags);
  send.opcode = IBV_WR_RDMA_READ;
  return send;
}

inline bool same(const Memory& one, const Memory& other, size_t length) {
  return std::memcmp(one.data, other.data, length) == 0;
}

// Retries until the send queue takes it.
inline void post_patiently(End& end, const Send& send, const std::vector<ibv_sge>& sges) {
  const auto deadline = Clock::now() + kHang;
  int error;
  while ((error = try_post(end, send, sges)) == ENOMEM) {
    CHECK(Clock::now() < deadline);
    std::this_thread::yield();
  }
  CHECK(error == 0);
}

// What this process holds that must not grow.
struct Holdings {
  size_t descriptors = 0;
  size_t mappings = 0;  // of memfds
};
inline Holdings holdings() {
  Holdings now;
  for (int fd = 0; fd < 4096; fd++) now.descriptors += fcntl(fd, F_GETFD) != -1;
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  CHECK(maps != nullptr);
  char line[1024];
  while (std::fgets(line, sizeof line, maps) != nullptr)
    now.mappings += std::strstr(line, "memfd:rdmakit") != nullptr;
  std::fclose(maps);
  return now;
}

}  // namespace fixture
