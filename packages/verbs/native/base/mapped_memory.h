// Memory that is going to be registered: touched now, so that no page fault comes later.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/null_with_errno.h"
#include "base/unique_fd.h"

namespace rdmakit {

enum class HugePages { transparent, none, size_2m, size_1g };

struct MemoryOptions {
  // `transparent`: when the kernel has some (madvise(2) MADV_HUGEPAGE). size_…: from hugetlbfs's pool, or
  // ENOMEM when too few are reserved there.
  HugePages huge_pages = HugePages::transparent;
  int numa_node = -1;   // -1: wherever the touching thread runs
  bool locked = false;  // mlock(2)
  bool shared = false;  // backed by a memfd, so that it can be mapped a second time
  // All pages are populated at the start; else each on first use, if the kernel refuses none then.
  bool populated = true;
};

inline size_t round_up_to(size_t length, size_t page) { return (length + page - 1) / page * page; }

// The page size of memory mappings: 4096 bytes on x86, up to 65536 on others (sysconf(3)).
inline size_t system_page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

inline size_t round_up_to_page(size_t length) { return round_up_to(length, system_page()); }

inline size_t mapped_length(size_t length, const MemoryOptions& options) {
  if (options.huge_pages == HugePages::size_2m) return round_up_to(length, size_t{2} << 20);
  if (options.huge_pages == HugePages::size_1g) return round_up_to(length, size_t{1} << 30);
  return round_up_to_page(length);
}

// Where the kernel overcommits without limit, touching this much would end in its OOM killer.
inline bool more_than_machine_has(size_t length) {
  return length / system_page() >= static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
}

// Has the pages of a mapping now, with what they hold, so that no fault asks for memory later: madvise(2)
// MADV_POPULATE_WRITE. `address` need not begin a page. 0 or an errno value; ENOMEM: a page is not to be had.
inline int populate(void* address, size_t length) {
  const size_t page = system_page();
  const size_t before = reinterpret_cast<uintptr_t>(address) % page;
  char* const first = static_cast<char*>(address) - before;
  if (madvise(first, length + before, MADV_POPULATE_WRITE) == 0) return 0;
  // EFAULT: a page that is not there, of hugetlbfs's pool, or of a file whose file system is full.
  if (errno != EINVAL) return errno == EFAULT ? ENOMEM : errno;
  // Kernels before 5.14 have no such advice: touch by hand.
  for (size_t at = 0; at < length + before; at += page) std::atomic_ref(first[at]).fetch_or(0);
  return 0;
}

// Whether the kernel may refuse a page of a memfd that is touched, here or by a peer that maps it: SIGBUS. It
// does so only under strict accounting (proc_sys_vm(5), overcommit_memory 2), which counts these pages one by
// one as they come; else a memory cgroup or the machine is full, and its OOM killer decides, as for any other
// page.
inline bool kernel_may_refuse_pages() {
  const UniqueFd setting(open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC));
  char mode = 0;
  return !setting || read(setting.get(), &mode, 1) != 1 || mode == '2';
}

// 0 or an errno value.
inline int touch_memory(void* address, size_t length, HugePages huge_pages = HugePages::transparent,
                        bool populated = true) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (length >= kHugePage && huge_pages == HugePages::transparent) madvise(address, length, MADV_HUGEPAGE);
  if (huge_pages == HugePages::none) madvise(address, length, MADV_NOHUGEPAGE);
  return populated ? populate(address, length) : 0;
}

// Binds untouched memory to a node: mbind(2) with MPOL_BIND. 0 or an errno value.
inline int bind_to_numa_node(void* address, size_t length, int node) {
  constexpr int kBind = 2;
  constexpr int kMaxNode = 1024;
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node >= kMaxNode) return EINVAL;
  unsigned long mask[kMaxNode / kBits] = {};
  mask[node / kBits] = 1ul << (node % kBits);
  return syscall(SYS_mbind, address, length, kBind, mask, static_cast<unsigned long>(kMaxNode), 0u) == 0
             ? 0
             : errno;
}

// Places, touches and locks a fresh mapping as `options` say. 0 or an errno value.
inline int prepare_memory(void* address, size_t length, const MemoryOptions& options) {
  // A fork would share the pages copy-on-write, and the parent's next write would move it off the
  // pages that the device knows (ibv_fork_init(3)).
  int error = madvise(address, length, MADV_DONTFORK) == 0 ? 0 : errno;
  if (error == 0 && options.numa_node >= 0) error = bind_to_numa_node(address, length, options.numa_node);
  const bool populated = options.populated || (options.shared && kernel_may_refuse_pages());
  if (error == 0) error = touch_memory(address, length, options.huge_pages, populated);
  if (error == 0 && options.locked && mlock(address, length) != 0) error = errno;
  return error;
}

// Null and errno on failure; EOPNOTSUPP: this processor, or this kernel, has no huge pages of that size.
// Given back with unmap_private_memory.
inline void* map_private_memory(size_t length, const MemoryOptions& options = {}) {
  if (length == 0 || more_than_machine_has(length)) return null_with_errno(length == 0 ? EINVAL : ENOMEM);
  constexpr int k2m = 21 << MAP_HUGE_SHIFT;
  constexpr int k1g = 30 << MAP_HUGE_SHIFT;
  const bool two = options.huge_pages == HugePages::size_2m;
  const bool one = options.huge_pages == HugePages::size_1g;
  length = mapped_length(length, options);
  int flags = options.shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  int fd = -1;
  if (options.shared) {
    // MFD_HUGE_… are MAP_HUGE_…'s bits (memfd_create(2)).
    const unsigned huge = two ? MFD_HUGETLB | static_cast<unsigned>(k2m)
                              : (one ? MFD_HUGETLB | static_cast<unsigned>(k1g) : 0u);
    fd = memfd_create("rdmakit-region", MFD_CLOEXEC | huge);
    if (fd < 0) {
      if (huge != 0 && (errno == EINVAL || errno == ENODEV)) errno = EOPNOTSUPP;
      return nullptr;
    }
    if (ftruncate(fd, static_cast<off_t>(length)) != 0) {
      const int error = errno;
      close(fd);
      return null_with_errno(error);
    }
  } else {
    flags |= two ? MAP_HUGETLB | k2m : (one ? MAP_HUGETLB | k1g : 0);
  }
  void* address = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  int error = address == MAP_FAILED ? errno : 0;
  if (error == EINVAL && (flags & MAP_HUGETLB) != 0) error = EOPNOTSUPP;
  if (fd >= 0) close(fd);
  if (error == 0) {
    error = prepare_memory(address, length, options);
    if (error == 0) return address;
    munmap(address, length);
  }
  return null_with_errno(error);
}

inline void unmap_private_memory(void* address, size_t length, const MemoryOptions& options = {}) {
  munmap(address, mapped_length(length, options));
}

}  // namespace rdmakit
