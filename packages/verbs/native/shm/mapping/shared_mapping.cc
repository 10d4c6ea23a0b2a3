#include "shm/mapping/shared_mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <map>
#include <mutex>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace rdmakit::shm {
namespace {

struct Known {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<SharedMapping>> by_inode;
  std::atomic<size_t> of_peers{0};
};
Known& known() {
  static Known* made = std::make_unique<Known>().release();  // outlives every mapping
  return *made;
}

size_t most_mappings() {
  static const size_t most = [] {
    size_t told = 0;
    std::ifstream("/proc/sys/vm/max_map_count") >> told;
    return told > 0 ? told : 65'530;  // the kernel's default, in a container without /proc
  }();
  return most;
}

}  // namespace

size_t most_mappings_of_peer() { return most_mappings() / 4; }
size_t most_mappings_of_peers() { return most_mappings() / 2; }
size_t SharedMapping::of_peers() { return known().of_peers.load(std::memory_order_relaxed); }

std::shared_ptr<SharedMapping> SharedMapping::map(int fd, size_t size, uint64_t inode, Sharing sharing,
                                                  bool own) {
  const bool writable = own || sharing == Sharing::writable;
  void* at = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  // A child of fork would hold peers' memory and its parent's place in it.
  madvise(at, size, MADV_DONTFORK);
  std::shared_ptr<SharedMapping> made(
      std::unique_ptr<SharedMapping>(new SharedMapping(static_cast<uint8_t*>(at), size, inode, sharing, own))
          .release());
  known().by_inode[inode] = made;
  if (!own) known().of_peers.fetch_add(1, std::memory_order_relaxed);
  return made;
}

int SharedMapping::available(std::string& why) {
  static const bool missing = [] {
    const UniqueFd probe(memfd_create("rdmakit-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    // Whatever else is wrong is told by what needs the file.
    return probe && fcntl(probe.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno == EINVAL;
  }();
  if (!missing) return 0;
  // Without it, who may read a table of ours could write to it.
  why = "shm:// needs Linux 5.1, for memory that others may read only (F_SEAL_FUTURE_WRITE); use iwarp://";
  return EOPNOTSUPP;
}

std::shared_ptr<SharedMapping> SharedMapping::create(const char* name, size_t length, Sharing sharing,
                                                     UniqueFd& fd) {
  UniqueFd made(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made || ftruncate(made.get(), static_cast<off_t>(length)) != 0) return nullptr;
  struct stat status;
  if (fstat(made.get(), &status) != 0) return nullptr;
  std::shared_ptr<SharedMapping> mapping;
  {
    const std::lock_guard lock(known().mutex);
    mapping = map(made.get(), length, status.st_ino, sharing, true);
  }
  if (mapping == nullptr) return nullptr;
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  // Ours stays writable; a mapping made from now on is not.
  if (sharing == Sharing::read_only) seals |= F_SEAL_FUTURE_WRITE;
  if (fcntl(made.get(), F_ADD_SEALS, seals) != 0) return nullptr;
  fd = std::move(made);
  return mapping;
}

std::shared_ptr<SharedMapping> SharedMapping::open(int fd, size_t least, Sharing sharing) {
  struct stat status;
  struct statfs system;
  const int seals = fcntl(fd, F_GET_SEALS);
  // tmpfs and not hugetlbfs, whose pages can be lacking when they are touched.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstatfs(fd, &system) != 0 ||
      system.f_type != TMPFS_MAGIC || fstat(fd, &status) != 0 || status.st_size <= 0 ||
      static_cast<uint64_t>(status.st_size) < least) {
    errno = EPROTO;
    return nullptr;
  }
  const std::lock_guard lock(known().mutex);
  if (const auto found = known().by_inode.find(status.st_ino); found != known().by_inode.end()) {
    std::shared_ptr<SharedMapping> mapping = found->second.lock();
    // A peer that hands us our own read-only file, or one it gave as such, to write to gets nowhere.
    if (mapping != nullptr && (sharing == Sharing::read_only || mapping->sharing_ == Sharing::writable) &&
        mapping->size_ >= least) {
      return mapping;
    }
    if (mapping != nullptr) {
      errno = EPROTO;
      return nullptr;
    }
  }
  return map(fd, static_cast<size_t>(status.st_size), status.st_ino, sharing, false);
}

SharedMapping::~SharedMapping() {
  {
    const std::lock_guard lock(known().mutex);
    const auto found = known().by_inode.find(inode_);
    // Another mapping of the file may have been made since the last reference went.
    if (found != known().by_inode.end() && found->second.expired()) known().by_inode.erase(found);
  }
  munmap(data_, size_);
  if (!own_) known().of_peers.fetch_sub(1, std::memory_order_relaxed);
}

void SharedMapping::populate(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0 || static_cast<uint64_t>(status.st_blocks) * 512 < size_) return;
  madvise(data_, size_, MADV_POPULATE_WRITE);
}

}  // namespace rdmakit::shm
