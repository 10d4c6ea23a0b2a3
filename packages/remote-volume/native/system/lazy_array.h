// An array of zeros that costs nothing until it is touched, for items of which zero bytes are a valid value.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <type_traits>

#include "base/mapped_memory.h"
#include "base/null_with_errno.h"

namespace rdmakit::volume {

// Zeros that become memory page by page as they are touched; nullptr with errno. Without huge pages: of a
// large volume little may be used, and one entry would cost 2 MiB. `prefault` makes it all memory now.
inline void* map_lazily(size_t bytes, bool prefault) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  if (!prefault) {
    madvise(mapping, bytes, MADV_NOHUGEPAGE);
  } else if (const int error = populate(mapping, bytes); error != 0) {
    munmap(mapping, bytes);
    return null_with_errno(error);
  }
  return mapping;
}

template <typename Item>
class LazyArray {
 public:
  static_assert(std::is_trivially_destructible_v<Item>);
  LazyArray() = default;
  LazyArray(const LazyArray&) = delete;
  LazyArray& operator=(const LazyArray&) = delete;
  ~LazyArray() {
    if (items_ != nullptr) munmap(items_, bytes_);
  }
  // 0 or an errno value.
  int open(size_t count, bool prefault) {
    bytes_ = count * sizeof(Item);
    items_ = static_cast<Item*>(map_lazily(bytes_, prefault));
    return items_ == nullptr ? errno : 0;
  }
  Item* get() const { return items_; }
  Item& operator[](size_t index) const { return items_[index]; }

 private:
  Item* items_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace rdmakit::volume
