// Memory that is going to be registered: touched now, so that no page fault comes later.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace rdmakit {

inline size_t round_up_to_page(size_t length) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (length + page - 1) / page * page;
}

// Where the kernel overcommits without limit, touching this much would end in its OOM killer.
inline bool more_than_machine_has(size_t length) {
  return length / static_cast<size_t>(sysconf(_SC_PAGESIZE)) >= static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
}

// 0 or an errno value.
inline int touch_memory(void* address, size_t length) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (length >= kHugePage) madvise(address, length, MADV_HUGEPAGE);
  if (madvise(address, length, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  // Kernels before 5.14 have no such advice: touch by hand.
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < length; at += page) static_cast<volatile char*>(address)[at] = 0;
  return 0;
}

// Null and errno on failure. Given back with munmap.
inline void* map_private_memory(size_t length) {
  if (more_than_machine_has(length)) {
    errno = ENOMEM;
    return nullptr;
  }
  length = round_up_to_page(length);
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  // A fork would share the pages copy-on-write, and the parent's next write would move it off the
  // pages that the device knows (ibv_fork_init(3)).
  int error = madvise(address, length, MADV_DONTFORK) == 0 ? 0 : errno;
  if (error == 0) error = touch_memory(address, length);
  if (error == 0) return address;
  munmap(address, length);
  errno = error;
  return nullptr;
}

}  // namespace rdmakit
